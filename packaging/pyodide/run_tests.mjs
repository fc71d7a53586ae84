// Run pytest in Pyodide, in Node: node packaging/pyodide/run_tests.mjs FOLDER ARGUMENTS...
// FOLDER contains node_modules/pyodide, the wheels of regard and NumPy in wheels, and pytest in tools.
import { readdirSync } from "node:fs";
import { pathToFileURL } from "node:url";

const [folder, ...tests] = process.argv.slice(2);
const pyodideFolder = `${folder}/node_modules/pyodide/`;
const { loadPyodide } = await import(pathToFileURL(`${pyodideFolder}pyodide.mjs`));
const pyodide = await loadPyodide({
  packageCacheDir: `${folder}/wheels`,
  env: { HOME: "/home/pyodide", PYTHONDONTWRITEBYTECODE: "1" },
});
await pyodide.loadPackage("numpy");
const regard = readdirSync(`${folder}/wheels`).find((name) => name.startsWith("regard-"));
await pyodide.loadPackage(`${folder}/wheels/${regard}`);
for (const [place, root] of [["/source", process.cwd()], ["/tools", `${folder}/tools`]]) {
  pyodide.FS.mkdirTree(place);
  pyodide.FS.mount(pyodide.FS.filesystems.NODEFS, { root }, place);
}
// The virtual files of a capture have no descriptors, and there is no thread that could watch a test.
const options = ["-q", "-n0", "-p", "no:cacheprovider", "--capture=sys", "-o", "faulthandler_timeout=0"];
const main = pyodide.runPython(`
import os, sys
sys.path.append("/tools")
os.chdir("/source")
import pytest
lambda arguments: int(pytest.main(arguments.to_py()))
`);
process.exit(main([...options, ...tests]));
