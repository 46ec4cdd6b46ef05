"""The whole life of a leader: elected, granted, taken over, at work, deposed."""

from epochfence.leading.async_lead import AsyncTenure, async_lead
from epochfence.leading.lead import lead
from epochfence.leading.partition_leaderships import PartitionLeaderships
from epochfence.leading.recovery import Recovered
from epochfence.leading.tenure import State, Tenure

__all__ = [
    "AsyncTenure",
    "PartitionLeaderships",
    "Recovered",
    "State",
    "Tenure",
    "async_lead",
    "lead",
]
