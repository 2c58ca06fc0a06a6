"""Continue prompts with onnxruntime-genai, by the most likely token: models are in folders."""

import json
import sys
from pathlib import Path

MAX_LENGTH = 64  # slots of the cache: at least the sliding window of a model


def continue_prompt(model, prompt, count):
    import onnxruntime_genai as genai

    settings = genai.GeneratorParams(model)
    settings.set_search_options(max_length=MAX_LENGTH, do_sample=False)
    generator = genai.Generator(model, settings)
    generator.append_tokens(prompt)
    for _ in range(count):
        generator.generate_next_token()
    return [int(token) for token in generator.get_sequence(0)][len(prompt) :]


def main():
    import onnxruntime_genai as genai

    asked = json.loads(Path(sys.argv[1]).read_text())
    answers = {}
    for folder in asked["folders"]:
        model = genai.Model(folder)
        count = asked["count"]
        answers[folder] = [continue_prompt(model, prompt, count) for prompt in asked["prompts"]]
    Path(sys.argv[2]).write_text(json.dumps(answers))


if __name__ == "__main__":
    main()
