"""Hyper-parameters of optimizers and options of modules, as far as torch's and MindSpore's are alike."""
