"""From a `glm-dsa` GGUF file to a served model. Order of rooms: file, model, plan, values, huggingface."""
