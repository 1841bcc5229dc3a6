"""Small trainings whose loss or gradients become NaN, each with the call and the reason that are right."""
