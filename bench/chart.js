/** A bar chart of sections per second, in relation to the first subject of each scenario. */
const ROW = 20;
const LABEL = 190;
const WIDTH = 340;

export function drawChart(lines) {
  const scenarios = Map.groupBy
    ? Map.groupBy(lines.filter(isCompared), ({ scenario }) => scenario)
    : grouped(lines.filter(isCompared));
  const parts = [];
  let y = 10;
  for (const [scenario, rows] of scenarios) {
    const most = Math.max(...rows.map(({ ratio }) => ratio));
    y += ROW;
    parts.push(`<text x="10" y="${y}" class="title">${escape(scenario)}</text>`);
    for (const { subject, ratio } of rows) {
      y += ROW;
      const length = Math.max(1, (ratio / most) * WIDTH).toFixed(0);
      const kind = subject === 'nestjs-redis-lock' ? 'ours' : 'other';
      parts.push(
        `<text x="${LABEL}" y="${y}" class="label">${escape(subject)}</text>`,
        `<rect x="${LABEL + 8}" y="${y - 12}" width="${length}" height="14" class="${kind}"/>`,
        `<text x="${LABEL + 14 + Number(length)}" y="${y}">${ratio.toFixed(2)}</text>`,
      );
    }
    y += ROW / 2;
  }
  const style =
    'text{font:12px sans-serif;fill:#24292f}.title{font-weight:bold}.label{text-anchor:end}.ours{fill:#0969da}.other{fill:#afb8c1}';
  const size = `width="${LABEL + WIDTH + 70}" height="${y + 10}"`;
  return (
    `<svg xmlns="http://www.w3.org/2000/svg" ${size} role="img"><title>Sections per second, in relation to the first</title>` +
    `<style>${style}</style><rect width="100%" height="100%" fill="#ffffff"/>${parts.join('')}</svg>\n`
  );
}

function isCompared({ ratio }) {
  return ratio !== undefined;
}

function grouped(lines) {
  const groups = new Map();
  for (const line of lines) groups.set(line.scenario, [...(groups.get(line.scenario) ?? []), line]);
  return groups;
}

function escape(text) {
  return text.replaceAll('&', '&amp;').replaceAll('<', '&lt;');
}
