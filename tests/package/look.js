// What a reader would stumble over, as lists of texts.
(() => {
  const rgba = (text) => {
    const numbers = text.match(/[\d.]+/g).map(Number);
    return numbers.length < 4 ? [...numbers, 1] : numbers;
  };
  const luminance = (color) => {
    const [r, g, b] = color.slice(0, 3).map((v) => (v /= 255) <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4);
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const contrast = (one, other) => {
    const [low, high] = [luminance(one), luminance(other)].sort((a, b) => a - b);
    return (high + 0.05) / (low + 0.05);
  };
  const ground = (element) => {
    for (let at = element; at; at = at.parentElement) {
      const color = rgba(getComputedStyle(at).backgroundColor);
      if (color[3] > 0) return color;
    }
    return [255, 255, 255, 1];
  };
  const own = (element) => [...element.childNodes].filter((each) => each.nodeType === 3).map((each) => each.data).join("").trim();
  const shown = [...document.querySelectorAll("body *")].filter((each) => each.getClientRects().length);
  const texts = shown.filter((each) => own(each));
  const color = (each) => rgba(getComputedStyle(each)[each instanceof SVGElement ? "fill" : "color"]);
  const size = (each) => parseFloat(getComputedStyle(each).fontSize) * (each.ownerSVGElement ? Math.hypot(each.getScreenCTM().c, each.getScreenCTM().d) : 1);
  const wide = shown.filter((each) => !each.closest("table, svg *") && each.getBoundingClientRect().right > innerWidth + 0.5);
  const figures = [...document.querySelectorAll("figure svg")];
  const inside = (box, outer) =>
    box.left > outer.left - 1 && box.right < outer.right + 1 && box.top > outer.top - 1 && box.bottom < outer.bottom + 1;
  const meet = (a, b) => a.left < b.right - 1 && b.left < a.right - 1 && a.top < b.bottom - 2 && b.top < a.bottom - 2;
  const overlaps = figures.flatMap((svg) => {
    const boxes = [...svg.querySelectorAll("text")].map((each) => [each.textContent, each.getBoundingClientRect()]);
    return boxes.flatMap(([text, box], index) =>
      boxes.slice(index + 1).filter(([, other]) => meet(box, other)).map(([other]) => `${svg.getAttribute("aria-label")}: ${text} / ${other}`));
  });
  const ids = [...document.querySelectorAll("[id]")].map((each) => each.id);
  return {
    scrolls_sideways: document.documentElement.scrollWidth > innerWidth,
    wide: wide.map((each) => each.outerHTML.slice(0, 120)),
    faint: texts.filter((each) => contrast(color(each), ground(each)) < 4.5).map((each) => own(each).slice(0, 60)),
    small: texts.filter((each) => size(each) < 9).map((each) => own(each)),
    cut_off: figures.flatMap((svg) => [...svg.querySelectorAll("text")].filter((each) => !inside(each.getBoundingClientRect(), svg.getBoundingClientRect())).map((each) => each.textContent)),
    overlaps,
    twice: ids.filter((each, index) => ids.indexOf(each) !== index),
    dangling: [...document.querySelectorAll("use")].map((each) => each.getAttribute("xlink:href")).filter((each) => !document.querySelector(each)).slice(0, 3),
    dark: luminance(ground(document.body)) < 0.2,
    num_figures: figures.length,
  };
})()
