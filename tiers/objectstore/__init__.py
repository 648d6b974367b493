"""A bucket of an S3-compatible store as a tier. Importing this needs no boto3."""

from tiers.objectstore.tier import ObjectStoreTier

__all__ = ["ObjectStoreTier"]
