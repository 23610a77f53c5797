"""What users read and write of snapshots."""
