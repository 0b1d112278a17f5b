"""The third binding, with the SDK's client as the black box."""

from __future__ import annotations

import asyncio
import datetime
import ipaddress
import subprocess
import sys
import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import grpc
import httpx
import pytest
from a2a.client import A2ACardResolver, Client, ClientConfig, ClientFactory
from a2a.client.client import ClientCallContext
from a2a.client.errors import A2AClientError
from a2a.types import a2a_pb2 as pb
from a2a.types import a2a_pb2_grpc
from a2a.utils import errors as a2a
from a2a.utils.grpc_status import status_from_call
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from google.protobuf.json_format import MessageToDict
from google.rpc import error_details_pb2

from examples.hello.agent import agent
from outlast import compose
from outlast.configuration import configuration
from outlast.gateway import grpc_server
from outlast.gateway.auth.ways import any_of, by_proxy
from outlast.gateway.cards import agent_card
from outlast.gateway.config import Extension
from outlast.gateway.grpc_server import GrpcServer, TlsFiles
from outlast.gateway.server import listen
from outlast.model.errors import ConfigError
from outlast.model.ids import TaskId
from outlast.wire.extension import EXTENSION_URI
from tests.integration.test_gateway_fold_law import Stream
from tests.integration.test_gateway_support import (
    Gateway,
    count_tasks,
    epoch_of,
    message,
    only_task,
    rest_of,
    running_gateway,
    state_of,
)

EXTENDED = {"A2A-Extensions": EXTENSION_URI}
SPOKEN = (("a2a-version", "1.0"),)


@dataclass(frozen=True)
class Called:
    """A gateway that is also called over gRPC."""

    gateway: Gateway
    server: GrpcServer
    client: Client
    streaming: Client
    channel: Any

    @property
    def stub(self) -> Any:
        return a2a_pb2_grpc.A2AServiceStub(self.channel)  # type: ignore[no-untyped-call]

    async def send(self, sent: pb.Message, *, immediately: bool = False, **context: Any) -> pb.Task:
        request = pb.SendMessageRequest(message=sent)
        request.configuration.return_immediately = immediately
        call = ClientCallContext(**context)
        (response,) = [item async for item in self.client.send_message(request, context=call)]
        return response.task

    def stream(self, sent: pb.Message, **said: str) -> Stream:
        """SendStreamingMessage; at its end the fold law is checked."""
        context = ClientCallContext(service_parameters=said)
        request = pb.SendMessageRequest(message=sent)
        items = self.streaming.send_message(request, context=context)
        return Stream(items, self.gateway.seen)

    def subscribe(self, task_id: str, **said: str) -> Stream:
        """SubscribeToTask; at its end the fold law is checked."""
        context = ClientCallContext(service_parameters=said)
        items = self.streaming.subscribe(pb.SubscribeToTaskRequest(id=task_id), context=context)
        return Stream(items, self.gateway.seen)


@asynccontextmanager
async def called(database_url: str, **limits: Any) -> AsyncIterator[Called]:
    async with running_gateway(database_url, **limits) as gateway:
        server = GrpcServer(
            gateway.handler, host="127.0.0.1", port=0, authenticator=any_of(gateway.ways)
        )
        serving = asyncio.create_task(server.serve())
        place = f"127.0.0.1:{server.port}"
        card = agent_card(gateway.agent, replace(gateway.handler.config, grpc_url=place))
        assert {i.url for i in card.supported_interfaces if i.protocol_binding == "GRPC"} == {place}
        client, streaming = [
            ClientFactory(
                ClientConfig(
                    streaming=streams,
                    grpc_channel_factory=grpc.aio.insecure_channel,
                    supported_protocol_bindings=["GRPC"],
                )
            ).create(card)
            for streams in (False, True)
        ]
        try:
            async with grpc.aio.insecure_channel(place) as channel:
                yield Called(gateway, server, client, streaming, channel)
        finally:
            await client.close()
            await streaming.close()
            server.stop()
            await serving


async def test_a_blocking_send_answers_with_the_end(database_url: str) -> None:
    async with called(database_url) as grpc_:
        sending = asyncio.create_task(grpc_.send(message("begin", message_id="one")))
        task_id = await only_task(grpc_.gateway)
        await grpc_.gateway.hand.finish(task_id)

        assert (await sending).status.state == pb.TASK_STATE_COMPLETED
        got = await grpc_.client.get_task(pb.GetTaskRequest(id=task_id))
        assert got == await grpc_.gateway.task(task_id)


async def test_a_required_extension_must_be_activated(sqlite_url: str) -> None:
    geo = Extension(uri="https://example.com/geo", required=True)
    async with called(sqlite_url, extensions=(geo,)) as grpc_:
        for said, refused in (((), True), ((("a2a-extensions", geo.uri),), False)):
            call = grpc_.stub.ListTasks(pb.ListTasksRequest(), metadata=(*SPOKEN, *said))
            if refused:
                with pytest.raises(grpc.aio.AioRpcError) as error:
                    await call
                assert _info(error.value).reason == "EXTENSION_SUPPORT_REQUIRED"
            else:
                assert (await call).total_size == 0


async def test_streams_answers_and_subscriptions_fold_to_the_task(database_url: str) -> None:
    async with called(database_url) as grpc_:
        hand = grpc_.gateway.hand
        sending = grpc_.stream(message())
        items = [await anext(sending)]
        task_id = TaskId(items[0].task.id)
        subscription = grpc_.subscribe(task_id, **EXTENDED)
        followed = [await anext(subscription)]
        await hand.chunk(task_id, "a", "b", append=False)
        await hand.ask(task_id, "sure?")
        items += await rest_of(sending)
        assert state_of(items[-1]) == "INPUT_REQUIRED"
        await grpc_.send(message("yes", task_id=task_id), immediately=True)
        await hand.finish(task_id)
        followed += await rest_of(subscription)

        assert state_of(followed[-1]) == "COMPLETED"
        said = [
            MessageToDict(getattr(item, str(item.WhichOneof("payload"))).metadata)[EXTENSION_URI]
            for item in followed
        ]
        assert [part["generation"] for part in said] == [*range(1, len(said) + 1)]


async def test_cancel_and_errors_are_those_of_the_other_bindings(sqlite_url: str) -> None:
    async with called(sqlite_url) as grpc_:
        task = await grpc_.send(message(), immediately=True)
        canceled = await grpc_.client.cancel_task(pb.CancelTaskRequest(id=task.id))
        assert canceled.status.state == pb.TASK_STATE_CANCELED
        with pytest.raises(a2a.TaskNotFoundError):
            await grpc_.client.get_task(pb.GetTaskRequest(id="no-such-task"))
        with pytest.raises(a2a.UnsupportedOperationError, match="has ended"):
            await anext(grpc_.subscribe(task.id))
        with pytest.raises(a2a.InvalidParamsError) as refused:
            await grpc_.send(pb.Message(message_id="m", parts=[pb.Part(text="x")]))
        assert refused.value.data == {
            "errors": [
                {"field": "message.role", "message": "must be ROLE_USER in what a caller sends"}
            ]
        }
        with pytest.raises(a2a.InvalidParamsError, match=r"^tenant: .*…$"):
            await grpc_.client.get_task(pb.GetTaskRequest(id="t", tenant="é/" * 100_000))
        other = pb.GetTaskRequest(id=task.id, tenant="acme")
        with pytest.raises(a2a.TaskNotFoundError):
            await grpc_.client.get_task(other)


@pytest.mark.parametrize("version", [None, "0.3", "1.1"])
async def test_case_133_grpc_checks_the_version(sqlite_url: str, version: str | None) -> None:
    async with called(sqlite_url) as grpc_:
        metadata = () if version is None else (("a2a-version", version),)
        get = grpc_.stub.GetTask(pb.GetTaskRequest(id="t"), metadata=metadata)
        follow = grpc_.stub.SubscribeToTask(pb.SubscribeToTaskRequest(id="t"), metadata=metadata)
        for answer in (get, follow.read()):
            with pytest.raises(grpc.aio.AioRpcError) as refused:
                await answer
            assert refused.value.code() is grpc.StatusCode.FAILED_PRECONDITION
            assert _info(refused.value).reason == "VERSION_NOT_SUPPORTED"


async def test_details_travel_in_trailing_metadata(sqlite_url: str) -> None:
    async with called(sqlite_url) as grpc_:
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await grpc_.stub.GetTask(pb.GetTaskRequest(id="nobody"), metadata=SPOKEN)
        info = _info(refused.value)

        assert refused.value.code() is grpc.StatusCode.NOT_FOUND
        assert (info.domain, dict(info.metadata)) == ("a2a-protocol.org", {"taskId": "nobody"})


async def test_what_does_not_parse_is_refused_in_the_protocols_words(sqlite_url: str) -> None:
    async with called(sqlite_url, max_body=64 * 1024) as grpc_:
        for method in ("GetTask", "SendMessage"):
            call = grpc_.channel.unary_unary(f"/lf.a2a.v1.A2AService/{method}")
            with pytest.raises(grpc.aio.AioRpcError) as refused:
                await call(b"\xff\xff\xff", metadata=SPOKEN)
            assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT
            assert _info(refused.value).reason == "INVALID_REQUEST"
        with pytest.raises(A2AClientError, match="RESOURCE_EXHAUSTED"):
            await grpc_.send(message("x" * 65 * 1024))
        assert await count_tasks(grpc_.gateway) == 0


@pytest.mark.parametrize(
    "method",
    [
        "/lf.a2a.v1.A2AService/SendMessage",
        "/lf.a2a.v1.A2AService/SendStreamingMessage",
        "/a2a.v1.A2AService/SendMessage",
        "/a2a.v1.A2AService/SendStreamingMessage",
    ],
)
async def test_who_is_unknown_is_refused_before_a_message_is_read(
    sqlite_url: str, method: str
) -> None:
    elsewhere = by_proxy("X-Caller", ["192.0.2.1"])
    async with called(sqlite_url, know=lambda _: [elsewhere], serves_0_3=True) as grpc_:
        never_sent = grpc_.channel.stream_unary(method)(metadata=SPOKEN)
        async with asyncio.timeout(20):
            code = await never_sent.code()

        assert code is grpc.StatusCode.UNAUTHENTICATED


async def test_a_call_without_a_message_is_refused(sqlite_url: str) -> None:
    async with called(sqlite_url) as grpc_:
        call = grpc_.channel.stream_unary("/lf.a2a.v1.A2AService/GetTask")(metadata=SPOKEN)
        await call.done_writing()

        assert await call.code() is grpc.StatusCode.INVALID_ARGUMENT


async def test_a_message_that_does_not_come_is_not_waited_for(
    sqlite_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("outlast.gateway.body.READ_S", 0.1)
    async with called(sqlite_url) as grpc_:
        never_sent = grpc_.channel.stream_unary("/lf.a2a.v1.A2AService/GetTask")(metadata=SPOKEN)
        async with asyncio.timeout(20):
            with pytest.raises(grpc.aio.AioRpcError, match="did not arrive within") as refused:
                await never_sent

        assert _info(refused.value).reason == "INVALID_REQUEST"


async def test_calls_of_all_callers_are_bounded(
    sqlite_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(grpc_server, "MOST_CALLS", 1)
    async with called(sqlite_url) as grpc_:
        stream = grpc_.stub.SendStreamingMessage(
            pb.SendMessageRequest(message=message()), metadata=SPOKEN
        )
        assert (await stream.read()).task.id
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await grpc_.stub.GetTask(pb.GetTaskRequest(id="some"), metadata=SPOKEN)
        stream.cancel()

        assert refused.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED


async def test_calls_on_one_connection_are_bounded(
    sqlite_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(grpc_server, "MOST_CALLS_OF_CONNECTION", 1)
    async with called(sqlite_url) as grpc_:
        stream = grpc_.stub.SendStreamingMessage(
            pb.SendMessageRequest(message=message()), metadata=SPOKEN
        )
        assert (await stream.read()).task.id
        waits = grpc_.stub.GetTask(pb.GetTaskRequest(id="some"), metadata=SPOKEN, timeout=0.5)

        assert await waits.code() is grpc.StatusCode.DEADLINE_EXCEEDED
        stream.cancel()
        after = grpc_.stub.GetTask(pb.GetTaskRequest(id="some"), metadata=SPOKEN)
        assert await after.code() is grpc.StatusCode.NOT_FOUND


async def test_a_key_in_metadata_makes_a_repeat_harmless(sqlite_url: str) -> None:
    async with called(sqlite_url) as grpc_:
        said = {"Idempotency-Key": str(uuid.uuid4())}
        tasks = [
            await grpc_.send(message(message_id=name), immediately=True, service_parameters=said)
            for name in ("msg-1", "msg-2")
        ]

        assert tasks[0].id == tasks[1].id


async def test_a_deadline_gets_the_task_as_it_is(sqlite_url: str) -> None:
    async with called(sqlite_url) as grpc_:
        task = await grpc_.send(message(), timeout=2.0)

        assert task.status.state == pb.TASK_STATE_SUBMITTED


async def test_case_026_a_call_that_is_cut_leaves_nothing_behind(sqlite_url: str) -> None:
    async with called(sqlite_url) as grpc_:
        stream = grpc_.stub.SendStreamingMessage(
            pb.SendMessageRequest(message=message()), metadata=SPOKEN
        )
        task_id = TaskId((await stream.read()).task.id)
        stream.cancel()
        board: Any = grpc_.gateway.database._board  # type: ignore[attr-defined]
        async with asyncio.timeout(5):
            while not board.is_empty:
                await asyncio.sleep(0.01)
        await grpc_.gateway.hand.finish(task_id)

        assert (await grpc_.gateway.task(task_id)).status.state == pb.TASK_STATE_COMPLETED


async def test_case_127_a_stop_ends_streams_and_says_that_this_was_not_all(
    sqlite_url: str,
) -> None:
    async with called(sqlite_url) as grpc_:
        task = await grpc_.send(message(), immediately=True)
        stream = grpc_.subscribe(task.id)
        await anext(stream)
        sending = asyncio.create_task(grpc_.send(message("yes", message_id="other")))
        async with asyncio.timeout(5):
            while await count_tasks(grpc_.gateway) < 2:
                await asyncio.sleep(0.005)
        grpc_.server.stop()
        async with asyncio.timeout(1):
            with pytest.raises(A2AClientError, match=r"UNAVAILABLE.*stopping"):
                await anext(stream)
            assert (await sending).status.state == pb.TASK_STATE_SUBMITTED


async def test_a_taken_port_and_a_missing_certificate_are_errors_of_the_configuration(
    sqlite_url: str,
) -> None:
    async with called(sqlite_url) as grpc_:
        with pytest.raises(ConfigError, match="cannot listen for gRPC"):
            GrpcServer(grpc_.gateway.handler, host="127.0.0.1", port=grpc_.server.port)
        with pytest.raises(ConfigError, match=r"cannot read .*none\.pem"):
            GrpcServer(
                grpc_.gateway.handler,
                host="127.0.0.1",
                port=0,
                tls=TlsFiles(cert="none.pem", key="none.pem"),
            )


def _info(error: Any) -> Any:
    status = status_from_call(error)
    assert status is not None
    info = error_details_pb2.ErrorInfo()
    assert status.details[0].Unpack(info)
    return info


async def test_a_process_serves_grpc_when_it_has_a_port(tmp_path: Path) -> None:
    """With TLS, and with the place in its card that is really listened on."""
    cert, key = certificate(tmp_path)
    settings = configuration(
        {"OUTLAST_GRPC_TLS_CERT": str(cert), "OUTLAST_GRPC_TLS_KEY": str(key)},
        database=f"sqlite:///{tmp_path}/x.db",
        host="127.0.0.1",
        port=free_port(),
        grpc_port=0,
    )
    async with compose.open_stores(settings) as stores, httpx.AsyncClient() as http:
        role = compose.gateway_role(agent, stores, settings, await epoch_of(stores))
        running = asyncio.ensure_future(role.run())
        url = f"http://127.0.0.1:{settings.port}"
        card = await A2ACardResolver(http, url).get_agent_card()
        (place,) = [i.url for i in card.supported_interfaces if i.protocol_binding == "GRPC"]
        trusted = grpc.ssl_channel_credentials(cert.read_bytes())
        async with grpc.aio.secure_channel(place, trusted) as channel:
            stub: Any = a2a_pb2_grpc.A2AServiceStub(channel)  # type: ignore[no-untyped-call]
            with pytest.raises(grpc.aio.AioRpcError) as refused:
                await stub.GetTask(pb.GetTaskRequest(id="nobody"), metadata=SPOKEN)
        role.stop()
        await running

        assert refused.value.code() is grpc.StatusCode.NOT_FOUND


def test_a_certificate_without_its_key_is_refused() -> None:
    with pytest.raises(ConfigError, match="go together"):
        configuration({"OUTLAST_GRPC_TLS_CERT": "cert.pem"})


def certificate(folder: Path) -> tuple[Path, Path]:
    """A certificate for 127.0.0.1 that signs itself, and its key."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "outlast test")])
    now = datetime.datetime.now(datetime.UTC)
    local = x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))])
    signed = (
        x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(local, critical=False)
        .sign(key, hashes.SHA256())
    )
    paths = folder / "cert.pem", folder / "key.pem"
    paths[0].write_bytes(signed.public_bytes(serialization.Encoding.PEM))
    paths[1].write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
    )
    return paths


def free_port() -> int:
    with listen("127.0.0.1", 0) as listener:
        return int(listener.getsockname()[1])


def test_a_process_starts_where_no_extra_is_installed() -> None:
    code = (
        "import sys; sys.modules |= dict.fromkeys(('grpc', 'joserfc', 'psycopg'));"
        " import outlast.cli, outlast.compose"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


async def test_without_the_extra_a_grpc_port_is_an_error_of_the_configuration(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "outlast.gateway.grpc_server", None)
    settings = configuration({}, database=f"sqlite:///{tmp_path}/x.db", port=0, grpc_port=0)
    with pytest.raises(ConfigError, match=r"pip install 'outlast\[grpc\]'"):
        await compose.answer_calls(agent, settings)
