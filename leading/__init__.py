"""The whole life of a leader: elected, granted, taken over, at work, deposed."""

from epochfence.leading.lead import lead
from epochfence.leading.partition_leaderships import PartitionLeaderships
from epochfence.leading.recovery import Recovered
from epochfence.leading.tenure import State, Tenure

__all__ = ["PartitionLeaderships", "Recovered", "State", "Tenure", "lead"]
