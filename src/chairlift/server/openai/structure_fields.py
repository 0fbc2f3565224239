"""Fields of tools and of the form of an answer, as OpenAI and vLLM write them. Knows nothing of grammars."""

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

MAX_TOOLS = 512
MAX_CHOICES = 65_536
_NAME = r"^[a-zA-Z0-9_.:-]{1,128}$"

JsonSchema = Annotated[dict[str, Any] | bool, Field(description="A JSON schema.")]


class Part(BaseModel):
    """Base of objects within a request: strict types; what is not known here has no effect, and is kept to say so."""

    model_config = ConfigDict(strict=True, extra="allow", protected_namespaces=())


class Options(Part):
    """Base of objects whose fields are options, so that one that is not known here is refused."""

    model_config = ConfigDict(strict=True, extra="forbid", protected_namespaces=())


class NamedSchema(Part):
    """The schema of a ``json_schema`` response format."""

    name: str | None = None
    description: str | None = None
    schema_: JsonSchema | None = Field(None, alias="schema")
    strict: bool | None = Field(None, description="The schema is followed in any case.")


class ResponseFormat(Part):
    """The form of the answer: text, any JSON object, or JSON that a schema accepts."""

    type: Literal["text", "json_object", "json_schema"]
    json_schema: NamedSchema | None = None


class StructuredOutputs(Part):
    """One of these, as vLLM names them."""

    model_config = ConfigDict(strict=True, extra="forbid", protected_namespaces=())

    json_: JsonSchema | str | None = Field(None, alias="json", description="A JSON schema, or its text.")
    json_object: bool | None = None
    regex: str | None = Field(None, description="An expression that the whole answer matches.")
    choice: Annotated[list[str], Field(fail_fast=True, max_length=MAX_CHOICES)] | None = None
    grammar: str | None = Field(None, description="A grammar in Lark's notation, or in GBNF.")


class FunctionTool(Part):
    """A function that the model may call."""

    name: str = Field(pattern=_NAME)
    description: str | None = None
    parameters: dict[str, Any] | None = Field(None, description="JSON schema of the arguments.")
    strict: bool | None = Field(
        None,
        description="Arguments follow the schema also where the model is free to call or not; forced calls always do.",
    )


class ToolDefinition(Part):
    """An entry of ``tools``."""

    type: Literal["function"]
    function: FunctionTool


class ChosenFunction(Part):
    """The function that must be called."""

    name: str


class NamedToolChoice(Part):
    """A ``tool_choice`` that names one function."""

    type: Literal["function"]
    function: ChosenFunction


ToolChoice = Literal["none", "auto", "required"] | NamedToolChoice
Tools = Annotated[list[ToolDefinition], Field(fail_fast=True, max_length=MAX_TOOLS)]
