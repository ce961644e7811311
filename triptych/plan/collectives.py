"""Seconds of the collective operations of FSDP between GPUs.

A gather brings every rank the parts of all others. Within a node it runs over the links between GPUs; between nodes,
each node needs the data once, over all its network cards at the same time. The slower of both decides. A
reduce-scatter is the same in reverse, an all-reduce is both.
"""

from dataclasses import dataclass

from triptych.plan.machines import Machine

BANDWIDTH_SHARE = 0.8  # of the nominal bandwidth, for large messages
LINK_LATENCY, NETWORK_LATENCY = 2e-6, 8e-6  # seconds per hop of a ring


@dataclass(frozen=True)
class Ring:
    """Ranks that exchange data, on nodes of a machine."""

    machine: Machine
    ranks: int
    stride: int = 1
    """Distance of neighbours: 1 if they are next to each other, the number of shards for copies of a sharded model."""

    @property
    def nodes(self) -> int:
        """Nodes that the ranks are spread over."""
        return -(-self.ranks * self.stride // self.machine.per_node) if self.ranks > 1 else 1

    def gather_seconds(self, num_bytes: float) -> float:
        """An all-gather, or a reduce-scatter, of a tensor of so many bytes in all."""
        if self.ranks == 1:
            return 0.0
        machine, nodes = self.machine, min(self.nodes, self.ranks)
        per_node = self.ranks / nodes
        seconds = num_bytes * (self.ranks - 1) / self.ranks / (BANDWIDTH_SHARE * machine.link) if per_node > 1 else 0.0
        if nodes > 1:
            over_network = num_bytes * (nodes - 1) / nodes / (BANDWIDTH_SHARE * per_node * machine.network)
            seconds = max(seconds, over_network)
        return seconds + (per_node - 1) * LINK_LATENCY + (nodes - 1) * NETWORK_LATENCY

    def all_reduce_seconds(self, num_bytes: float) -> float:
        return 2 * self.gather_seconds(num_bytes)
