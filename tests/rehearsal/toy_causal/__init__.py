"""A task of next tokens: the target rule shifts the labels once, and the loss does not."""
