"""What a trained model is asked."""
