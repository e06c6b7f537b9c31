"""The search for the first module that goes wrong, capturing at each step only what that step needs."""
