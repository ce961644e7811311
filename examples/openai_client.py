"""The routes of OpenAI's API on a Triptych server, with OpenAI's own client.

    pip install openai
    triptych serve &
    python examples/openai_client.py

Files go to the current folder.
"""

import argparse
import base64
from pathlib import Path

from openai import OpenAI


def data_uri(path: Path, content_type: str) -> str:
    return f"data:{content_type};base64,{base64.b64encode(path.read_bytes()).decode()}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--url", default="http://127.0.0.1:8000", help="address of the server")
    parser.add_argument("--key", default="none", help="API key, if the server has keys")
    parser.add_argument("--folder", type=Path, default=Path("."), help="where files go")
    args = parser.parse_args()
    client = OpenAI(base_url=f"{args.url}/v1", api_key=args.key)
    model = client.models.list().data[0].id
    image, speech = args.folder / "cats.png", args.folder / "cats.wav"

    # Draw, with images on the way. What OpenAI's API does not have goes into extra_body.
    for event in client.images.generate(
        model=model,
        prompt="two cats",
        stream=True,
        partial_images=2,
        extra_body={"seed": 1, "sampler": "random_order", "num_steps": 8},
    ):
        print(event.type)
        if event.type == "image_generation.completed":
            image.write_bytes(base64.b64decode(event.b64_json))

    # Draw again what is transparent, here everything.
    edited = client.images.edit(model=model, image=image.open("rb"), prompt="a dog left of a red heart")
    (args.folder / "edited.png").write_bytes(base64.b64decode(edited.data[0].b64_json))

    # Speak, and write down what is said.
    client.audio.speech.create(model=model, voice="alloy", input="two cats", response_format="wav").write_to_file(
        speech
    )
    print("transcript:", client.audio.transcriptions.create(model=model, file=speech.open("rb")).text)

    # Ask about the image. The text streams as its beginning becomes certain.
    question = [
        {"type": "image_url", "image_url": {"url": data_uri(image, "image/png")}},
        {"type": "text", "text": "how many cats are there?"},
    ]
    print("answer: ", end="")
    for chunk in client.chat.completions.create(
        model=model, messages=[{"role": "user", "content": question}], stream=True
    ):
        print(chunk.choices[0].delta.content or "", end="", flush=True)
    print()

    # Draw what a recording says: modalities are the kinds of the answer.
    recording = {"data": base64.b64encode(speech.read_bytes()).decode(), "format": "wav"}
    drawn = client.chat.completions.create(
        model=model,
        messages=[{"role": "user", "content": [{"type": "input_audio", "input_audio": recording}]}],
        extra_body={"modalities": ["text", "image"]},
    )
    message = drawn.choices[0].message
    uri = message.images[0]["image_url"]["url"]
    (args.folder / "drawn.png").write_bytes(base64.b64decode(uri.partition(",")[2]))
    print("drawn:", message.content)

    # Continue a text, and fill in a token between two texts.
    print("continued:", client.completions.create(model=model, prompt="there are two", max_tokens=4).choices[0].text)
    filled = client.completions.create(model=model, prompt="a picture of", suffix=" cats", max_tokens=1, logprobs=3)
    print("filled in:", filled.choices[0].text, filled.choices[0].logprobs.top_logprobs[0])


if __name__ == "__main__":
    main()
