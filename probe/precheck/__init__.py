"""Every recorded call run again alone and judged: is it the kernel or the model?"""
