// The first screen as a picture for a chat or an issue: the page drawn once more, inside of an image.

/** What is on the screen, as markup of an image. */
function screenMarkup() {
  const root = document.documentElement;
  const body = /** @type {HTMLElement} */ (document.body.cloneNode(true));
  const canvases = [...document.querySelectorAll("canvas")];
  body.querySelectorAll("canvas").forEach((one, at) => {
    const image = el("img", { src: canvases[at].toDataURL(), id: one.id, style: `width: ${canvases[at].clientWidth}px` });
    one.replaceWith(image);
  });
  for (const gone of body.querySelectorAll("script, dialog, #say, #hover, [hidden]")) gone.remove();
  // A copy has not been scrolled.
  for (const id of ["scroll", "detail", "view"]) {
    const [one, copied] = [document.getElementById(id), body.querySelector(`#${id}`)];
    if (!one?.scrollTop || !copied) continue;
    const inside = /** @type {HTMLElement | null} */ (copied.firstElementChild);
    if (inside) inside.style.marginTop = `-${one.scrollTop}px`;
  }
  const search = body.querySelector("#search");
  if (search) search.setAttribute("value", filter.query);
  body.style.cssText = `width: ${innerWidth}px; height: ${innerHeight}px; overflow: hidden`;
  const markup = new XMLSerializer().serializeToString(body);
  const { theme } = root.dataset;
  return `<svg xmlns="http://www.w3.org/2000/svg" width="${innerWidth}" height="${innerHeight}" data-theme="${theme}" style="${root.style.cssText}"><foreignObject width="100%" height="100%">${markup}</foreignObject></svg>`;
}

/** @returns {Promise<Blob>} */
async function screenPicture() {
  const image = new Image();
  image.src = `data:image/svg+xml;charset=utf-8,${encodeURIComponent(screenMarkup())}`;
  await image.decode();
  const canvas = document.createElement("canvas");
  const ratio = devicePixelRatio || 1;
  [canvas.width, canvas.height] = [innerWidth * ratio, innerHeight * ratio];
  const brush = /** @type {CanvasRenderingContext2D} */ (canvas.getContext("2d"));
  brush.fillStyle = getComputedStyle(document.body).backgroundColor;
  brush.fillRect(0, 0, canvas.width, canvas.height);
  brush.drawImage(image, 0, 0, canvas.width, canvas.height);
  return new Promise((done, fail) => canvas.toBlob((blob) => (blob ? done(blob) : fail(new Error(TEXTS.notCopied)))));
}

/** Copies the screen as a picture; where the browser does not let a page do that, saves it. */
async function copyPicture() {
  try {
    const blob = await screenPicture();
    try {
      await navigator.clipboard.write([new ClipboardItem({ "image/png": blob })]);
      say(TEXTS.pictureCopied);
    } catch {
      download("graph.png", blob, "image/png");
      say(TEXTS.pictureSaved);
    }
  } catch (error) {
    showError(error);
  }
}
