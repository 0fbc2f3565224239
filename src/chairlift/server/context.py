"""What every endpoint is given. Knows nothing of endpoints."""

from dataclasses import dataclass, field

from starlette.requests import Request

from chairlift.config.sections import (
    AnswerSettings,
    BatchSettings,
    ConnectionSettings,
    EmbeddingSettings,
    LimitSettings,
    ObservabilitySettings,
    ServerSettings,
)
from chairlift.errors import UnknownModelError
from chairlift.server.access import Access, Caller
from chairlift.server.body_budget import BufferedBodies
from chairlift.server.concurrency import ConcurrencyCap
from chairlift.server.directory import RequestDirectory
from chairlift.server.engine_port import Engine
from chairlift.server.errors import shorten
from chairlift.server.http_metrics import HttpMetrics


@dataclass(frozen=True, slots=True, kw_only=True)
class WebSections:
    """The sections of the settings that concern the server alone, beside its own."""

    limits: LimitSettings = field(default_factory=LimitSettings)
    connections: ConnectionSettings = field(default_factory=ConnectionSettings)
    observability: ObservabilitySettings = field(default_factory=ObservabilitySettings)
    answers: AnswerSettings = field(default_factory=AnswerSettings)
    embeddings: EmbeddingSettings = field(default_factory=EmbeddingSettings)
    batches: BatchSettings = field(default_factory=BatchSettings)


@dataclass(frozen=True, slots=True)
class ServerContext:
    """The engine, the server's settings and rules, the requests that are alive, and the facts that endpoints report.

    ``started_at_s`` is the Unix time at which the server started, reported as the model's creation time.
    """

    engine: Engine
    settings: ServerSettings
    version: str
    started_at_s: int
    access: Access
    sections: WebSections
    bodies: BufferedBodies
    concurrency: ConcurrencyCap
    http_metrics: HttpMetrics | None = None
    directory: RequestDirectory = field(default_factory=RequestDirectory)

    def check_model(self, name: str | None) -> str:
        """Name of the model that answers a request for ``name``; ``None`` takes the one there is.

        Raises:
            UnknownModelError: another model is asked for.
        """
        served = self.engine.model_info.name
        if name is not None and name != served:
            raise UnknownModelError(
                f"the model '{shorten(name)}' does not exist; this server serves '{served}'", param="model"
            )
        return served


def context_of(request: Request) -> ServerContext:
    """The context of the application that received a request."""
    context: ServerContext = request.app.state.context
    return context


def caller_of(request: Request) -> Caller:
    """Who sent a request, as the guard found out."""
    caller: Caller = request.state.caller
    return caller
