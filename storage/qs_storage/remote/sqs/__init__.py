"""The `sqs` engine: queues that an SQS endpoint keeps, Amazon's or any other server that speaks its protocol."""

from .client import CallPolicy
from .sqs_engine import SqsEngine

__all__ = ["CallPolicy", "SqsEngine"]
