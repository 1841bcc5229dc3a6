"""The two monitors of a training, and what they are made of: `TrainerMon` and `TrainerMonitorV2`."""
