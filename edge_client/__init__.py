"""The edge client: drafts tokens on the device and lets the cloud verify them."""
