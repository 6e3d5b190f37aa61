"""Queues that an SQS endpoint keeps: Amazon's, or any other server that speaks its protocol."""

from .engine import SqsEngine
from .patience import Patience

__all__ = ["Patience", "SqsEngine"]
