"""How sources speak HTTP: `client` sends requests, `answers` says what an answer means, `body` receives its bytes."""
