"""What the API takes and gives, in words: for its checks, /openapi.json and /docs."""

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field


class SolveRequest(BaseModel):
    """A puzzle, and who should answer it how."""

    model_config = ConfigDict(extra="forbid", strict=True)

    model: str = Field(description="a model of /v1/models, or a domain: then the first model that reads the puzzle")
    puzzle: Any = Field(description="text, or the domain's JSON; /v1/models has an example of each")
    fallback: Literal["exact"] | None = Field(
        default=None, description="'exact': a classical method answers where the model's answer fails the check"
    )
    trace: bool = Field(default=False, description="the answer after every ACT step too")
    steps: int | None = Field(default=None, description="ACT steps at most; the model's own budget unless given")
    search: int | None = Field(
        default=None,
        description="so many more tries at a puzzle whose answer is refused, each with a cell filled in that the model "
        "is unsure about; default: some where puzzles have such cells (Sudoku) and no `steps` are given; 0: none",
    )
    picture: bool = Field(default=False, description="in a stream: each answer as an SVG picture too")


class StepEvent(BaseModel):
    """The answer as it stands after one ACT step."""

    step: int = Field(description="which ACT step this is, from 1 on")
    answer: Any = Field(description="the whole answer so far, as the domain's JSON")
    changed: list[int] = Field(description="positions that are not as they were a step before")
    confidence: float | None = Field(description="the model's own probability that the answer is right; null: none")
    valid: bool | None = Field(description="whether the checker accepts it; null in a domain that has none")
    svg: str | None = Field(default=None, description="the answer as a picture; only where `picture` was asked for")


class AnswerBody(BaseModel):
    model: str = Field(description="who answered")
    domain: str = Field(description="which kind of puzzle it is")
    puzzle: str = Field(description="the puzzle as it was read")
    answer: Any = Field(description="the answer as the domain's JSON")
    text: str = Field(description="the same as text")
    verified: bool | None = Field(description="what the checker says: true, false, or null in a domain that has none")
    by: Literal["model", "exact"] = Field(description="the model, or the classical method of the fallback")
    note: str = Field(description="why the checker refuses it, or what else there is to know")
    steps: int = Field(description="ACT steps taken, those of a search aside")
    tries: int = Field(description="which try of a search gave the answer; 0: none")
    confidence: float | None = Field(description="the model's own probability that the answer is right; null: none")
    trace: list[StepEvent] | None = Field(default=None, description="every step; only where `trace` was asked for")


class ModelBody(BaseModel):
    name: str
    domain: str
    title: str = Field(description="the domain in a line")
    rules: str = Field(description="the rules, and how puzzles and answers are written")
    example: str = Field(description="a puzzle as text")
    example_json: Any = Field(description="the same as JSON")
    checkable: bool = Field(description="whether answers can be checked")
    exact: bool = Field(description="whether there is a classical method for `fallback`")
    board: Any = Field(description="how the web page draws it; null: as text and picture")
    parameters: int = Field(description="of the model")
    max_steps: int = Field(description="ACT steps it was trained with")
    halting: str = Field(description="halt, halt+continue: by confidence; asked: steps that a puzzle asks for; or none")
    budget: int = Field(description="the most that `steps` may be")
    search: int = Field(description="tries that follow where an answer is refused, unless a request says otherwise")
    params: dict[str, Any] = Field(description="the domain's parameters, the size for one")
    any_size: bool = Field(description="whether it takes boards of other sizes than it was trained on")
    card: dict[str, Any] | None = Field(description="what was measured, by which command; null: nobody did")


class ModelsBody(BaseModel):
    models: list[ModelBody] = Field(description="all that this server has")


class PuzzleBody(BaseModel):
    puzzle: str = Field(description="as text")
    json_: Any = Field(alias="json", description="as the domain's JSON")


class HealthBody(BaseModel):
    ok: bool = Field(description="false, with status 503: the models do not work any more")
    models: list[str]
    version: str = Field(description="of ponder")
