import pytest
@pytest.mark.parametrize("n", range(50))
async def test_a(store, n):
    r = await store.claimed()
    await r.pause()
