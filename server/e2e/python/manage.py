import requests


def call(method, path, body=None):
    answer = requests.request(method, "http://127.0.0.1:8002/v1" + path, json=body, timeout=10)
    if not answer.ok:
        raise SystemExit(answer.json()["error"])  # all that is wrong with what was sent
    return answer.json()


app = {"name": "digits-blank", "models": ["digits"], "policy": "exp4", "params": {"output": "label"}, "slo": "2s"}
call("POST", "/apps", app)
image = [[0] * 8] * 8  # a blank image, which is not a 7
call("POST", "/apps/digits-blank/feedback", {"user": "anna", "input": image, "label": 7})
for user in call("GET", "/apps/digits-blank/policy")["users"]:
    for model in user["models"]:
        print(user["user"], model["model"], "share", model["share"], "mean loss", model["loss"])
