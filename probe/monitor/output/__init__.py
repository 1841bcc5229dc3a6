"""The files of a monitor: folders, tables of both layouts, TensorBoard, anomalies, the structure of the model."""
