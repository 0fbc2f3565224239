"""What is printed when the server is ready. Knows nothing of the server.

A key itself is never shown: the curl line has a placeholder for the shell to fill in.
"""

import ipaddress
import json
import shlex

_QUESTION = "What is the capital of France?"


def base_url(host: str, port: int) -> str:
    """Address to reach the server at from the same machine; listening everywhere includes loopback."""
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return f"http://{host}:{port}"
    if address.is_unspecified:
        address = ipaddress.ip_address("127.0.0.1" if address.version == 4 else "::1")
    return f"http://{address}:{port}" if address.version == 4 else f"http://[{address}]:{port}"


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach the address."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def ready_text(model: str, url: str, *, needs_key: bool, is_tenants_key: bool = False) -> str:
    """Where the server is, and a line to try it with.

    Args:
        model: the served model's name.
        url: where the server is.
        needs_key: whether requests must come with a key.
        is_tenants_key: whether there are no keys but those that ``--tenants`` has.
    """
    messages = [{"role": "user", "content": _QUESTION}]
    body = {"model": model, "messages": messages, "max_tokens": 64, "temperature": 0}
    words = ["curl", f"{url}/v1/chat/completions", "-H", "Content-Type: application/json", "-d", json.dumps(body)]
    line = " ".join(map(shlex.quote, words))
    how = ""
    if needs_key:
        name = "KEY" if is_tenants_key else "CHAIRLIFT_API_KEY"
        how = f", with a tenant's key of --tenants as {name}" if is_tenants_key else ""
        line += f' -H "Authorization: Bearer ${name}"'
    return f"Chairlift serves {model} at {url}\nTry it{how}:\n{line}"
