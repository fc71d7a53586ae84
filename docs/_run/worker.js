// Runs programs of the tutorial in Pyodide, one after the other, and sends the lines that they print.
const PYODIDE = "https://cdn.jsdelivr.net/pyodide/v0.27.7/full/";
importScripts(`${PYODIDE}pyodide.js`);

async function prepared() {
  const pyodide = await loadPyodide({ indexURL: PYODIDE });
  const wheel = new URLSearchParams(location.search).get("wheel");
  await pyodide.loadPackage("numpy");
  await pyodide.loadPackage(new URL(wheel, location.href).href);
  const programs = await fetch("programs.zip");
  pyodide.unpackArchive(await programs.arrayBuffer(), "zip", { extractDir: "/programs" });
  const batched = (line) => postMessage({ line });
  pyodide.setStdout({ batched });
  pyodide.setStderr({ batched });
  return pyodide.runPython(`
import runpy, sys
sys.path.insert(0, "/programs")
lambda name: runpy.run_path(f"/programs/{name}", run_name="__main__") and None
`);
}

const ready = prepared();
onmessage = async ({ data: name }) => {
  try {
    (await ready)(name);
    postMessage({ isDone: true });
  } catch (error) {
    postMessage({ line: error.message, isDone: true });
  }
};
