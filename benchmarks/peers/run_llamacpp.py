"""Runs the requests with llama.cpp's server: starts it, sends all of them at once, waits for all answers.

Knows nothing of how the server was built. Answers are not streamed, so that the client costs next to nothing.
"""

import asyncio
import re
import socket
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import httpx

from benchmarks.peers.timing import Request, Task, cpu_list, measure, read_task

_START_TIMEOUT_S = 120
_BATCH_TOKENS = 2048


def server_version(program: Path) -> str:
    """Return what the server says of itself."""
    said = subprocess.run([program, "--version"], capture_output=True, text=True, check=True)
    found = re.search(r"version: (\S+)", said.stdout + said.stderr)
    return found[1] if found else "unknown"


@contextmanager
def serving(task: Task, program: Path) -> Iterator[str]:
    """A server on a free port until the block ends; gives its address."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    num_threads = str(len(cpu_list()))
    slot_tokens = task.longest_tokens + 8
    command = [str(program), "--model", str(task.model), "--host", "127.0.0.1", "--port", str(port)]
    command += ["--parallel", str(task.num_slots), "--ctx-size", str(slot_tokens * task.num_slots)]
    command += ["--batch-size", str(_BATCH_TOKENS), "--threads", num_threads, "--threads-batch", num_threads]
    url = f"http://127.0.0.1:{port}"
    log = task.cache / "llama-server.log"
    with log.open("w") as output:
        process = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT)
    try:
        deadline_s = time.monotonic() + _START_TIMEOUT_S
        while not _is_ready(url):
            if process.poll() is not None or time.monotonic() > deadline_s:
                raise RuntimeError(f"llama-server did not start: {log.read_text(errors='replace')[-500:]}")
            time.sleep(0.2)
        yield url
    finally:
        process.terminate()
        process.wait()


def _is_ready(url: str) -> bool:
    try:
        return httpx.get(f"{url}/health").status_code == httpx.codes.OK
    except httpx.TransportError:
        return False


async def ask_all(url: str, requests: Sequence[Request], *, caches: bool) -> None:
    """Send all requests and check the lengths of the answers."""
    limits = httpx.Limits(max_connections=None)
    async with httpx.AsyncClient(base_url=url, timeout=None, limits=limits) as http:

        async def ask(request: Request) -> None:
            body = {"prompt": request.prompt, "n_predict": request.num_output_tokens, "ignore_eos": True}
            body |= {"temperature": 0, "cache_prompt": caches, "stream": False}
            answer = await http.post("/completion", json=body)
            answer.raise_for_status()
            num_tokens = answer.json()["tokens_predicted"]
            if num_tokens != request.num_output_tokens:
                raise RuntimeError(f"wanted {request.num_output_tokens} tokens, got {num_tokens}")

        await asyncio.gather(*map(ask, requests))


def main() -> None:
    task = read_task()
    if task.program is None:
        raise SystemExit("--program is missing")
    version = f"{server_version(task.program)}, source of {task.settings['source']}"
    with serving(task, task.program) as url:
        measure(task, lambda requests: asyncio.run(ask_all(url, requests, caches=task.shares_prefix)), version)


if __name__ == "__main__":
    main()
