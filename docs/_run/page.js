// A button for each program of the page that a browser can run, and its output. run_programs.py names the programs.
const script = document.currentScript;
const canRun = new Set(script.dataset.programs.split(" "));
let worker = null;
let running = null;

function button(block, name) {
  const run = document.createElement("button");
  const output = document.createElement("pre");
  run.className = "run-program";
  run.textContent = "Run in this browser";
  output.className = "run-output";
  output.hidden = true;
  output.setAttribute("role", "status");
  run.addEventListener("click", () => {
    if (running) return;
    running = { run, output };
    run.disabled = true;
    output.hidden = false;
    output.textContent = worker ? "" : "Loading Python, NumPy and regard (about 17 MB) ...\n";
    worker ??= started();
    worker.postMessage(name);
  });
  block.append(run, output);
}

function started() {
  const made = new Worker(new URL(`worker.js?wheel=${script.dataset.wheel}`, script.src));
  made.addEventListener("message", ({ data: { line, isDone } }) => {
    if (line !== undefined) running.output.textContent += `${line}\n`;
    if (!isDone) return;
    running.run.disabled = false;
    running = null;
  });
  made.addEventListener("error", () => {
    running.output.textContent += "Python could not be loaded from cdn.jsdelivr.net.\n";
    running.run.disabled = false;
    running = worker = null;
  });
  return made;
}

document.addEventListener("DOMContentLoaded", () => {
  if (location.protocol === "file:") return; // pages opened from a folder may not read files
  for (const block of document.querySelectorAll(".literal-block-wrapper")) {
    const name = block.querySelector(".caption-text")?.textContent.split("/").pop();
    if (canRun.has(name)) button(block, name);
  }
});
