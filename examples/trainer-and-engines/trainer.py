"""trainer: learns from completions and gives the engines what it has learned. A step is one batch.
It ends with exit status 0 after ENGINES_STEPS steps.

In ENGINES_DIR it keeps checkpoint.json and metrics.jsonl, a line for each step. A file named update
there makes it send weights after this step, one named finish makes this step its last.
"""

import concurrent.futures
import json
import os
import random
import time
import urllib.parse

import model
import supervised
import web

BATCH, SAMPLES, RATE = 16, 4, 2.0
SAVE_EVERY = 10  # steps
PATIENCE = 12.0  # seconds for one completion: the router asks every engine for some


class Trainer:
    """One life of the trainer."""

    def __init__(self):
        self.step, self.weights = self.load()
        self.life = os.environ.get("VIGIL_INCARNATION", "1")
        self.version = self.name_weights()
        self.pool = concurrent.futures.ThreadPoolExecutor(8)

    def load(self):
        """Step and weights of the checkpoint, if there is one."""
        try:
            with open(os.path.join(supervised.folder(), "checkpoint.json"), encoding="utf-8") as f:
                saved = json.load(f)
            print("goes on from checkpoint %d" % saved["step"], flush=True)
            return saved["step"], saved["weights"]
        except FileNotFoundError:
            return 0, model.untrained()

    def save(self):
        """Write the checkpoint, whole or not at all."""
        supervised.write("checkpoint.json", json.dumps({"step": self.step, "weights": self.weights}))
        supervised.say("X_VIGIL_CHECKPOINT=%d" % self.step)

    def name_weights(self):
        """The version of the weights as they are now: no other life has one of that name."""
        return "%s.%d" % (self.life, self.step)

    def one_step(self):
        """Complete, judge, learn."""
        chance = random.Random(self.step)
        prompts = chance.sample(model.PROMPTS, BATCH)
        answers = {}
        while len(answers) < BATCH:
            answers.update(self.completions([p for p in prompts if p not in answers]))
            if len(answers) < BATCH:
                self.send_weights()  # an engine answers that has others: it was begun again
        self.weights = {**self.weights, **{p: model.learn(self.weights, p, texts, RATE) for p, texts in answers.items()}}
        rewards = [model.reward(p, t) for p, texts in answers.items() for t in texts]
        self.step += 1
        supervised.say("X_VIGIL_STEP=%d" % self.step)
        self.note(sum(rewards) / len(rewards))

    def note(self, reward):
        """A line of metrics.jsonl."""
        with open(os.path.join(supervised.folder(), "metrics.jsonl"), "a", encoding="utf-8") as f:
            f.write(json.dumps({"step": self.step, "reward": round(reward, 4), "version": self.version}) + "\n")

    def completions(self, prompts):
        """The completions of those prompts that were made with the weights that the engines should
        have. It comes back however often engines or the router are restarted meanwhile."""
        waiting = {self.pool.submit(self.complete, p): p for p in prompts}
        answers = {}
        for done in self.watched(waiting):
            version, texts = done.result()
            if version == self.version:
                answers[waiting[done]] = texts
        return answers

    def watched(self, waiting):
        """The futures as they are done. While it waits it says that it does."""
        while waiting:
            done, open_ = concurrent.futures.wait(waiting, timeout=1.0, return_when=concurrent.futures.FIRST_COMPLETED)
            if not done:
                supervised.say("WATCHDOG=1", "STATUS=waits for %d completions" % len(open_))
            yield from done
            waiting = open_

    def complete(self, prompt):
        """Version and texts of one completion, asked for until it is there."""
        body = {"model": "tiny", "prompt": prompt, "n": SAMPLES, "seed": self.step}
        pause = 0.1
        while True:
            for router in supervised.peers("router"):
                try:
                    status, answer = web.ask("POST", router["url"] + "/v1/completions", body, PATIENCE)
                    if status == 200:
                        return answer["system_fingerprint"], [c["text"] for c in answer["choices"]]
                except OSError:
                    pass  # it is down, or was in the middle of this
            time.sleep(pause)
            pause = min(2 * pause, 1.0)

    def send_weights(self):
        """Give every engine the weights. Nobody takes an engine that is busy with them for one that
        hangs, and one that vigil has begun again may be asked from now on."""
        self.version = self.name_weights()
        self.tell("/engine/pause_watch?for=30s")
        try:
            for engine in supervised.peers("engine"):
                if engine["state"] in ("ready", "paused", "quarantined"):
                    self.send_to(engine)
        finally:
            self.tell("/engine/resume_watch")

    def send_to(self, engine):
        """Give one engine the weights, and admit it if it is new. One that cannot be reached is left
        to the probe that sees it, one that says no is reported."""
        supervised.say("WATCHDOG=1", "STATUS=sends weights to engine %d" % engine["rank"])
        try:
            for path, body in (("/pause", {}), ("/update_weights", {"version": self.version, "weights": self.weights}), ("/resume", {})):
                status, answer = web.ask("POST", engine["url"] + path, body)
                if status != 200:
                    why = "%s: %s %s" % (path, status, answer.get("error", {}).get("message", ""))
                    print("engine %d does not take weights: %s" % (engine["rank"], why), flush=True)
                    life = urllib.parse.quote(engine["life"], safe="")
                    self.tell("/engine/report_error?rank=%d&life=%s" % (engine["rank"], life), {"error": why})
                    return
        except OSError as err:
            print("engine %d is not reached: %s" % (engine["rank"], err), flush=True)
            return
        now = [e for e in supervised.peers("engine") if e["life"] == engine["life"]]
        if engine["state"] == "quarantined" and now:
            self.tell("/engine/admit?worker=%d" % engine["rank"])

    def tell(self, path, body=None):
        """Tell the controller; what it does not do, it says."""
        try:
            supervised.controller(path, body)
        except OSError as err:
            print("the controller: %s" % err, flush=True)


def main():
    """Learn until the steps are done."""
    last = int(os.environ.get("ENGINES_STEPS", "100"))
    period = float(os.environ.get("ENGINES_PERIOD", "0.2"))
    every = int(os.environ.get("ENGINES_UPDATE_EVERY", "5"))
    trainer = Trainer()
    trainer.send_weights()
    while trainer.step < last:
        began = time.monotonic()
        trainer.one_step()
        if trainer.step % SAVE_EVERY == 0 or trainer.step == last:
            trainer.save()
        if supervised.asked("finish"):
            break
        if trainer.step % every == 0 or supervised.asked("update"):
            trainer.send_weights()
        time.sleep(max(0.0, period - (time.monotonic() - began)))
    print("done after %d steps" % trainer.step, flush=True)


if __name__ == "__main__":
    main()
