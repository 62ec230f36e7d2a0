"""The keys by which a daemon's configuration says where its metrics and probes are served."""

from __future__ import annotations

from pydantic import BaseModel, Field, model_validator

from libtortie.errors import InvalidInput
from libtortie.serving_access import Place


class MetricsKeys(BaseModel):
    """Part of a configuration; port 0 serves nothing."""

    metrics_port: int = Field(default=0, ge=0, le=65535)
    metrics_host: str = ""
    metrics_token_file: str = ""
    metrics_cert_file: str = ""
    metrics_key_file: str = ""
    metrics_client_ca_file: str = ""

    @model_validator(mode="after")
    def _metrics_guarded(self) -> MetricsKeys:
        try:
            self.metrics_place.check("metrics_")
        except InvalidInput as error:
            raise ValueError(str(error)) from error
        return self

    @property
    def metrics_place(self) -> Place:
        """Where, and to whom."""
        return Place(
            self.metrics_port,
            self.metrics_host,
            self.metrics_token_file,
            self.metrics_cert_file,
            self.metrics_key_file,
            self.metrics_client_ca_file,
        )
