"""`python -m glm5_service` is `glm5`."""

from glm5_service.cli import main

main()
