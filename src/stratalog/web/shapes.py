"""What all schemas of documents share."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

Ok = Annotated[bool, Field(description="False if anything in here has an error.")]
Applied = Annotated[bool, Field(description="Whether anything was done: not by a dry run.")]


class Shape(BaseModel):
    """An object of exactly these members; one that may be null is still there."""

    model_config = ConfigDict(extra="forbid")


class ItemError(Shape):
    """What is wrong with one item of several; the others are told, or done, all the same."""

    type: str
    kafka_code: int
    message: str


Mode = Literal["inplace", "ledger"]
