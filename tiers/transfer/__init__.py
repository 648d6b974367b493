"""Copies between a GPU's pages and the CPU tier's rows. Needs torch."""

from tiers.transfer.worker import CPUOffloadingWorker

__all__ = ["CPUOffloadingWorker"]
