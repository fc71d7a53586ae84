// The pointer chooses, moves and zooms.
function cellAt(event) {
  const box = byId("picture").getBoundingClientRect(),
    [q0, q1, k0, k1] = state.view;
  const down = (event.clientY - box.top - plot.top) / plot.height,
    across = (event.clientX - box.left - plot.left) / plot.width;
  const inside = down >= 0 && down < 1 && across >= 0 && across < 1;
  return {
    inside,
    down,
    across,
    query: clamp(Math.floor(q0 + down * (q1 - q0)), 0, facts.q_len - 1),
    key: clamp(Math.floor(k0 + across * (k1 - k0)), 0, facts.kv_len - 1),
  };
}
function pointers() {
  const canvas = byId("picture");
  let held = null;
  canvas.addEventListener("pointerdown", (event) => {
    canvas.setPointerCapture(event.pointerId);
    held = { x: event.clientX, y: event.clientY, view: [...state.view], moved: false };
  });
  canvas.addEventListener("pointermove", (event) => {
    const cell = cellAt(event);
    if (!held) {
      if (cell.inside && current)
        byId("readout").textContent = readout(current, cell.query, cell.key);
      return;
    }
    const dx = event.clientX - held.x,
      dy = event.clientY - held.y;
    held.moved ||= Math.abs(dx) + Math.abs(dy) > 4;
    if (!held.moved) return;
    const [q0, q1, k0, k1] = held.view,
      down = (-dy / plot.height) * (q1 - q0),
      across = (-dx / plot.width) * (k1 - k0);
    setView(q0 + down, q1 + down, k0 + across, k1 + across);
    render();
  });
  canvas.addEventListener("pointerup", (event) => {
    const cell = cellAt(event);
    if (held && !held.moved && cell.inside) change({ query: cell.query, key: cell.key });
    held = null;
  });
  canvas.addEventListener(
    "wheel",
    (event) => {
      const cell = cellAt(event);
      if (!cell.inside) return;
      event.preventDefault();
      zoom(1.0015 ** clamp(event.deltaY, -400, 400), cell.down, cell.across);
      render();
    },
    { passive: false },
  );
  canvas.addEventListener("dblclick", (event) => {
    const cell = cellAt(event);
    zoom(0.4, cell.down, cell.across);
    render();
  });
}
