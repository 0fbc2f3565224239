"""What a server's refusal says. Knows nothing of what was asked."""

import msgspec


def error_message(body: bytes, status: int) -> str:
    """The message in an answer that is not a success; the status if there is none."""
    try:
        return str(msgspec.json.decode(body)["error"]["message"])
    except (msgspec.DecodeError, KeyError, TypeError):
        return f"the server answered {status}"
