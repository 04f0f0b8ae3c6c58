"""The dashboard: pages for people, drawn by the server from the replies of the API's routes."""
