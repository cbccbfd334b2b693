"""The server: checks streamed draft tokens against the target model."""
