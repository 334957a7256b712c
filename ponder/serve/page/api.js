// The HTTP interface: /v1/models, random puzzles, and the stream of a solution.

const TOKEN = "ponder-token";

export class Refused extends Error {
  constructor(message, status) {
    super(message);
    this.status = status;
  }
}

async function ask(path, askToken, options = {}) {
  for (;;) {
    const token = sessionStorage.getItem(TOKEN);
    const headers = { ...options.headers, ...(token ? { Authorization: `Bearer ${token}` } : {}) };
    let response;
    try {
      response = await fetch(path, { ...options, headers });
    } catch (error) {
      if (error.name === "AbortError") throw error;
      throw new Refused("The server does not answer. Is it still running?", 0);
    }
    if (response.status === 401) {
      sessionStorage.removeItem(TOKEN);
      sessionStorage.setItem(TOKEN, await askToken());
    } else if (response.ok) {
      return response;
    } else {
      throw await refusal(response);
    }
  }
}

async function refusal(response) {
  let message = `The server answered ${response.status}.`;
  try {
    message = (await response.json()).error ?? message;
  } catch {
    // A proxy's page rather than our JSON: the status has to do.
  }
  const wait = response.headers.get("Retry-After");
  return new Refused(wait ? `${message} (try again in ${wait} s)` : message, response.status);
}

export class Api {
  // `askToken` resolves to a bearer token when the server wants one.
  constructor(askToken) {
    this.askToken = askToken;
  }

  async models() {
    return (await (await ask("v1/models", this.askToken)).json()).models;
  }

  async random(model) {
    const seed = crypto.getRandomValues(new Uint32Array(1))[0] >>> 1;
    return (await (await ask(`v1/models/${encodeURIComponent(model)}/random?seed=${seed}`, this.askToken)).json()).puzzle;
  }

  // Calls `onStep` with every step and returns the answer.
  async solve(body, onStep, signal) {
    const response = await ask("v1/solve/stream", this.askToken, {
      method: "POST",
      headers: { "Content-Type": "application/json" },
      body: JSON.stringify(body),
      signal,
    });
    for await (const { event, data } of events(response.body)) {
      if (event === "step") onStep(data);
      if (event === "answer") return data;
      if (event === "error") throw new Refused(data.error, 200);
    }
    throw new Refused("The connection broke before the answer came.", 0);
  }
}

// Server-sent events of a fetched body (EventSource can neither POST nor send a token).
async function* events(body) {
  const reader = body.pipeThrough(new TextDecoderStream()).getReader();
  let buffer = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    buffer = (buffer + value).replaceAll("\r\n", "\n");
    const blocks = buffer.split("\n\n");
    buffer = blocks.pop();
    for (const block of blocks) {
      const fields = { event: "message", data: "" };
      for (const line of block.split("\n")) {
        const [, name, text] = /^(\w+): ?(.*)$/.exec(line) ?? [];
        if (name === "event") fields.event = text;
        if (name === "data") fields.data += text;
      }
      if (fields.data) yield { event: fields.event, data: JSON.parse(fields.data) };
    }
  }
}
