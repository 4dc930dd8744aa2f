"""Checks the speed-ups that audits estimate: small programs run again under the policies that the audits name."""
