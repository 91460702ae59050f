/** Says in which condition a GPU is: how warm, how fast, why not faster, and which errors it has counted. */

import { number, t } from "./words.js";

// Bits of NVML's reasons for lower clocks, the gravest first.
const REASONS = [[0x40, "hardware_heat"], [0x20, "heat"], [0x80, "brake"], [0x8, "hardware"], [0x4, "power"], [0x10, "sync"]];

/** The reasons for lower clocks in words; "" for none. */
export function slowedBy(bits) {
  return REASONS.filter(([bit]) => bits & bit).map(([, reason]) => t(`slow_${reason}`)).join(t("list_comma"));
}

export function celsius(value) {
  return `${number(value)} °C`;
}

export function watts(value) {
  return `${number(value)} W`;
}

export function percents(value) {
  return `${number(value)} %`;
}

/** The facts of a condition, as [word, text, whether somebody should look at it]; those that are not known are left out. */
export function conditionFacts(now) {
  const has = (...names) => names.every((name) => now[name] !== null && now[name] !== undefined);
  const of = (name, most, say) => (has(most) ? t("sum_of", { given: say(now[name]), total: say(now[most]) }) : say(now[name]));
  const mhz = (value) => `${number(value)} MHz`;
  const milliwatts = (value) => watts(Math.round(value / 1000));
  const joined = (...texts) => texts.filter(Boolean).join(t("list_comma"));
  const slowed = has("throttle") && slowedBy(now.throttle);
  return [
    has("temperature_c") && ["cond_temperature", has("slowdown_c") ? t("slows_at", { now: celsius(now.temperature_c), most: celsius(now.slowdown_c) }) : celsius(now.temperature_c), now.temperature_c >= (now.slowdown_c ?? Infinity)],
    has("memory_temperature_c") && ["cond_memory_temperature", celsius(now.memory_temperature_c)],
    has("fan_percent") && ["cond_fan", percents(now.fan_percent)],
    has("power_mw") && ["cond_power", of("power_mw", "power_limit_mw", milliwatts)],
    has("throttle") && ["cond_slowed", slowed || t("slow_none"), Boolean(slowed)],
    has("sm_clock_mhz") && ["cond_sm_clock", of("sm_clock_mhz", "sm_clock_max_mhz", mhz)],
    has("memory_clock_mhz") && ["cond_memory_clock", of("memory_clock_mhz", "memory_clock_max_mhz", mhz)],
    has("sm_percent") && ["cond_load", joined(t("load_sm", { percent: percents(now.sm_percent) }), has("memory_percent") && t("load_memory", { percent: percents(now.memory_percent) }), has("encoder_percent") && t("load_encoder", { percent: percents(now.encoder_percent) }), has("decoder_percent") && t("load_decoder", { percent: percents(now.decoder_percent) }))],
    has("pcie_width") && ["cond_pcie", joined(has("pcie_generation") && t("pcie_generation", { now: of("pcie_generation", "pcie_generation_max", number) }), t("pcie_lanes", { now: of("pcie_width", "pcie_width_max", number) }), now.pcie_replays > 0 && t("pcie_replays", { n: now.pcie_replays })), now.pcie_width < (now.pcie_width_max ?? 0)],
    has("nvlink_errors") && ["cond_nvlink", t("errors", { n: now.nvlink_errors }), now.nvlink_errors > 0],
    has("ecc_corrected", "ecc_uncorrected") && ["cond_ecc", t("ecc", { corrected: now.ecc_corrected, uncorrected: now.ecc_uncorrected }), now.ecc_uncorrected > 0],
    has("retired_pages") && ["cond_pages", t("out_of_use", { n: now.retired_pages })],
    has("remapped_rows") && ["cond_rows", t("replaced", { n: now.remapped_rows })],
    now.repair_pending && ["cond_repair", t("repair_pending"), true],
    now.repair_failed && ["cond_repair", t("repair_failed"), true],
    has("persistence") && ["cond_persistence", t(now.persistence ? "on" : "off")],
  ].filter(Boolean);
}
