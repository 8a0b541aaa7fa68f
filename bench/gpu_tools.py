# SPDX-License-Identifier: Apache-2.0
"""What the scripts that measure on a GPU share: running programs, the shapes, a server."""
import json
import os
import pathlib
import signal
import subprocess
import tempfile
import time

SHAPES = {
    "8b": dict(hidden_size=4096, intermediate_size=14336, num_hidden_layers=32, num_attention_heads=32,
               num_key_value_heads=8, vocab_size=128256, max_position_embeddings=8448, rope_theta=500000.0,
               tie_word_embeddings=False),
    "smollm2": dict(hidden_size=576, intermediate_size=1536, num_hidden_layers=30, num_attention_heads=9,
                    num_key_value_heads=3, vocab_size=49152, max_position_embeddings=8192,
                    rope_theta=100000.0, tie_word_embeddings=True),
}


def run(command, timeout, stdin=None):
    """Its exit status, -1 past the timeout, when its children are ended too; its output and its seconds."""
    begin = time.time()
    process = subprocess.Popen(list(map(str, command)), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                               stdin=subprocess.DEVNULL if stdin is None else subprocess.PIPE, start_new_session=True)
    try:
        out, err = process.communicate(stdin, timeout)
        code = process.returncode
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        out, err = process.communicate()
        code, err = -1, err + "\ntimed out"
    return {"rc": code, "out": out, "err": err, "s": round(time.time() - begin, 2)}


def say(*what):
    print(*what, flush=True)


def settings(pairs):
    return [x for p in pairs for x in ("--set", p)]


def model_config(shape):
    """Of "8b", "smollm2"; with "-fp8" behind it the weights but the vocabulary's are FP8."""
    fp8 = {"quant_method": "fp8", "activation_scheme": "dynamic", "modules_to_not_convert": ["lm_head"]}
    return dict(architectures=["LlamaForCausalLM"], model_type="llama", hidden_act="silu", rms_norm_eps=1e-5,
                torch_dtype="bfloat16", bos_token_id=1, eos_token_id=2, **SHAPES[shape.removesuffix("-fp8")],
                **({"quantization_config": fp8} if shape.endswith("-fp8") else {}))


def shape_dir(shape):
    """A model directory without weights: load_format=random makes them."""
    path = pathlib.Path(tempfile.gettempdir()) / f"millrace-{shape}"
    path.mkdir(exist_ok=True)
    (path / "config.json").write_text(json.dumps(model_config(shape)))
    return path


class Server:
    """`millrace serve` on the GPU, from its start until it is ready; ended with the context."""

    def __init__(self, binary, model, pairs, port=18001, timeout=90):
        self.binary, self.address = binary, f"127.0.0.1:{port}"
        self.log = tempfile.NamedTemporaryFile("w+", suffix=".log")
        begin = time.time()
        self.process = subprocess.Popen([str(binary), "serve", "--model", str(model), "--listen", self.address,
                                         *settings(["backend=cuda", *pairs])],
                                        stdout=subprocess.DEVNULL, stderr=self.log)
        while 'msg="ready"' not in self.text():
            if self.process.poll() is not None or time.time() > begin + timeout:
                self.process.kill()
                raise RuntimeError("the server did not start: " + self.text()[-2000:])
            time.sleep(0.05)
        self.ready_s = round(time.time() - begin, 2)

    def text(self):
        return pathlib.Path(self.log.name).read_text()

    def load(self, requests, prompt, output, concurrency=None, timeout=150):
        """The program's own client; its JSON object, or what it said instead."""
        r = run([self.binary, "bench", "serve", "--server", self.address, "--requests", requests, "--concurrency",
                 concurrency or requests, "--prompt-tokens", prompt, "--output-tokens", output, "--json"], timeout)
        return json.loads(r["out"]) if r["rc"] == 0 else {"error": (r["out"] + r["err"])[-800:]}

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.terminate()
        self.process.wait(timeout=60)
