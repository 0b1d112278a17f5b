"""Who calls. Nothing here knows a binding but `middleware`: each goes through the one `door`."""
