"""Train a single cell, independent of Ray and MLflow. Importing it is light, because `interplay plan` reads cells."""
