"""The screens of the dashboard, one module for each subject."""
