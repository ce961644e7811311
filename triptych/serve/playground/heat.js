// The heat map: one number from 0 to 1 for each position.

export const HEAT_KINDS = { none: "off", confidence: "confidence", entropy: "entropy", step: "step" };

export function heatOf(segment, kind) {
  const { stats, masked, outlook } = segment;
  if (kind === "confidence") return stats.confidence;
  if (kind === "entropy") {
    // 1 - exp(-H) is 0 for a certain token and 1/2 for a coin toss between two.
    return stats.entropy.map((each, i) => squashed(masked[i] ? outlook.get(i)?.entropy : each));
  }
  if (kind === "step") {
    const last = Math.max(1, ...stats.step.filter((each) => each !== null));
    return stats.step.map((each) => (each === null ? null : each / last));
  }
  return masked.map(() => null);
}

const squashed = (entropy) => (entropy === null || entropy === undefined ? null : 1 - Math.exp(-entropy));
