/** The page's own words in both languages; sentences of the server stay as they are. */

/** Of every text: English, Chinese. `{name}` is filled in; `one|more` is chosen by `n`. One entry a line, as a test reads them. */
const WORDS = {
  title: ["GPU shares", "GPU 共享"],
  skip: ["Skip to the nodes", "跳到节点"],
  reading: ["Reading the cluster …", "正在读取集群…"],
  language: ["Language", "语言"],
  theme: ["Colours", "配色"],
  theme_auto: ["Auto", "自动"],
  theme_light: ["Light", "浅色"],
  theme_dark: ["Dark", "深色"],
  summary: ["The cluster at a glance", "集群概览"],
  given: ["Given", "已分配"],
  used: ["Used", "已使用"],
  free: ["Free", "空闲"],
  of_total: ["of {total}", "共 {total}"],
  of_given: ["{percent} of what is given", "占已分配的 {percent}"],
  used_of: ["{known} of {n} GPU known|{known} of {n} GPUs known", "{n} 块 GPU 中已知 {known} 块"],
  only_allocation: ["only allocation is known", "只知道分配情况"],
  free_hint: ["on nodes that take pods", "在可调度的节点上"],
  largest: ["Largest pod now", "当前可容纳的最大 Pod"],
  largest_at: ["on {node}, GPU {i}", "位于 {node}，GPU {i}"],
  largest_none: ["no GPU has room", "没有 GPU 有余量"],
  whole_free: ["Whole GPUs free", "空闲整卡"],
  whole_of: ["of {n} GPU|of {n} GPUs", "共 {n} 块 GPU"],
  mig_free: ["{free} of {n} MIG instance|{free} of {n} MIG instances", "{n} 个 MIG 实例中的 {free} 个"],
  waiting: ["Waiting pods", "等待中的 Pod"],
  waiting_oldest: ["the oldest for {age}", "最久已等 {age}"],
  waiting_none: ["every pod has its GPUs", "所有 Pod 都已获得 GPU"],
  attention: ["Attention", "需要关注"],
  attention_none: ["all is as it should be", "一切正常"],
  count_over: ["{n} over its share|{n} over their share", "{n} 个超用"],
  count_bad: ["{n} GPU unhealthy|{n} GPUs unhealthy", "{n} 块 GPU 异常"],
  count_trespass: ["{n} trespasser|{n} trespassers", "{n} 个越界使用"],
  count_unheld: ["{n} limit not held|{n} limits not held", "{n} 个限制未生效"],
  count_node: ["{n} node with a problem|{n} nodes with problems", "{n} 个节点有问题"],
  filters: ["Filters", "筛选"],
  namespace: ["Namespace", "命名空间"],
  node: ["Node", "节点"],
  model: ["Model", "型号"],
  search: ["Search", "搜索"],
  search_hint: ["pod, node, model …", "Pod、节点、型号…"],
  all: ["all", "全部"],
  only_trouble: ["Only with problems", "仅看有问题的"],
  clear: ["Clear filters", "清除筛选"],
  view: ["View", "视图"],
  view_cards: ["Cards", "卡片"],
  view_map: ["Map", "热力图"],
  colour_by: ["Height shows", "高度表示"],
  shown: ["{n} node shown|{n} nodes shown", "显示 {n} 个节点"],
  shown_of: ["{n} of {all} nodes shown", "显示 {n} / {all} 个节点"],
  none_shown: ["No node matches the filters.", "没有符合筛选条件的节点。"],
  no_nodes: ["No node of this cluster shares GPUs.", "该集群没有共享 GPU 的节点。"],
  nodes: ["Nodes", "节点"],
  namespaces: ["Namespaces", "命名空间"],
  more: ["{n} more", "还有 {n} 个"],
  legend: ["Legend", "图例"],
  legend_used: ["used", "已使用"],
  legend_given: ["given", "已分配"],
  legend_over: ["over its share", "超用"],
  legend_whole: ["whole GPU", "整卡"],
  legend_scale: ["empty to full", "空到满"],
  legend_bad: ["unhealthy", "异常"],
  legend_free: ["free", "空闲"],
  gpus_of: ["{n} × {model}", "{n} × {model}"],
  sum_of: ["{given} of {total}", "{given} / {total}"],
  not_ready: ["not ready", "未就绪"],
  cordoned: ["cordoned", "已封锁"],
  serves_claims: ["claims (DRA)", "资源申领（DRA）"],
  loose: ["{amount} on GPUs that are not known yet", "{amount} 所在 GPU 尚未确定"],
  loose_mig: ["{n} MIG instance is in use, and not known which|{n} MIG instances are in use, and not known which", "{n} 个 MIG 实例已占用，尚不知是哪些"],
  blind: ["Who uses the memory is not known on this node.", "无法得知该节点上显存的使用者。"],
  stale: ["use as of {age} ago", "使用情况为 {age}前"],
  rung_partition: ["limits: hardware (MIG)", "限制：硬件（MIG）"],
  rung_driver: ["limits: driver", "限制：驱动"],
  rung_mps: ["limits: MPS", "限制：MPS"],
  rung_custom: ["limits: library", "限制：自带库"],
  rung_advisory: ["limits: advisory", "限制：仅建议"],
  rung_other: ["limits: {rung}", "限制：{rung}"],
  gpu_name: ["GPU {i}", "GPU {i}"],
  mig_gpu: ["GPU {i} in MIG mode", "GPU {i}（MIG 模式）"],
  bar_given: ["{given} of {total} given", "已分配 {given} / {total}"],
  bar_used: ["{used} used", "已使用 {used}"],
  bar_free: ["{free} free", "空闲 {free}"],
  bar_whole: ["given whole", "整卡分配"],
  bar_whole_mig: ["given whole", "整实例分配"],
  bar_bad: ["unhealthy: {why}", "异常：{why}"],
  bar_fenced_whole: ["not to be had whole: shares of it are in use", "不可整卡分配：已有份额在用"],
  bar_fenced_shares: ["no shares to be had: it is in whole use", "不可按份额分配：已整卡使用"],
  part_given: ["{amount} given", "分得 {amount}"],
  part_whole: ["the whole GPU", "整块 GPU"],
  part_whole_mig: ["the whole MIG instance", "整个 MIG 实例"],
  part_used: ["{amount} used", "已用 {amount}"],
  part_sm: ["{percent} of the processors", "算力占用 {percent}"],
  part_over: ["over its share since {age} ago", "超用已 {age}"],
  part_trespass: ["was not given this GPU", "未被分配此 GPU"],
  part_deleting: ["is ending", "正在结束"],
  part_hidden: ["a pod that you may not see", "无权查看的 Pod"],
  hidden: ["hidden", "不可见"],
  held_held: ["limit held", "限制生效"],
  held_differs: ["limit differs", "限制不一致"],
  held_missing: ["limit missing", "限制缺失"],
  held_unverified: ["limit not verified", "限制未核实"],
  note_trespass: ["{pod} uses {amount} of it and was not given it", "{pod} 未被分配却使用了 {amount}"],
  note_trespass_unknown: ["{pod} uses it and was not given it", "{pod} 未被分配却在使用"],
  note_other: ["{amount} used by no pod", "{amount} 不属于任何 Pod"],
  note_over: ["{pod} uses {used} of {given}, for {age}", "{pod} 使用 {used}，仅分得 {given}，已 {age}"],
  note_pending: ["{amount} for pods that are not shown", "{amount} 属于未显示的 Pod"],
  note_refusal: ["gives no shares: {why}", "不提供份额：{why}"],
  map_label: ["Map of the GPUs; arrow keys move, Enter opens the node", "GPU 热力图；方向键移动，回车打开节点"],
  cell: ["{node}, GPU {i}: {rest}", "{node}，GPU {i}：{rest}"],
  drawer: ["Details", "详情"],
  close: ["Close", "关闭"],
  loading: ["Reading …", "正在读取…"],
  on_node: ["Node", "节点"],
  phase: ["Phase", "阶段"],
  created: ["Created", "创建于"],
  ago: ["{age} ago", "{age}前"],
  priority: ["Priority", "优先级"],
  scheduler: ["Scheduler", "调度器"],
  uid: ["UID", "UID"],
  deleting: ["being deleted", "正在删除"],
  why: ["Why", "原因"],
  containers: ["Containers", "容器"],
  kind_init: ["init", "初始化"],
  kind_sidecar: ["sidecar", "边车"],
  asks: ["asks for", "申请"],
  gpus: ["GPUs", "GPU"],
  use_unknown: ["Its use is not known.", "使用情况未知。"],
  used_unknown: ["use not known", "使用情况未知"],
  use_of: ["{used} of {given}", "{used} / {given}"],
  found_limit: ["the driver answers {amount}", "驱动返回 {amount}"],
  variables: ["Variables", "环境变量"],
  events: ["Events", "事件"],
  events_none: ["No events.", "没有事件。"],
  times: ["{n} time|{n} times", "{n} 次"],
  state: ["State", "状态"],
  address: ["Address", "地址"],
  driver: ["Driver", "驱动"],
  policy: ["Policy", "策略"],
  share_size: ["Size of a share", "份额大小"],
  limits: ["Limits", "限制"],
  pods: ["Pods", "Pod"],
  no_pods: ["No pod uses its GPUs.", "没有 Pod 使用其 GPU。"],
  as_json: ["All data, as JSON", "全部数据（JSON）"],
  only_node: ["Show only this node", "只显示此节点"],
  asked_for: ["asks for {asks}", "申请 {asks}"],
  waits_for: ["for {age}", "已等 {age}"],
  alone: ["Your pods with GPUs", "您的 GPU Pod"],
  alone_hint: ["The nodes cannot be read with your rights; these are the pods that you may see.", "您的权限无法读取节点；以下是您可以查看的 Pod。"],
  live: ["live", "实时"],
  data_age: ["{age} old", "{age}前的数据"],
  behind: ["The API server was last heard {age} ago", "最近一次收到 API 服务器消息在 {age}前"],
  connecting: ["connecting …", "正在连接…"],
  lost: ["The connection is lost.", "连接已断开。"],
  lost_shown: ["What you see is {age} old.", "所显示的数据已有 {age}。"],
  lost_again: ["Next try in {n} s.", "{n} 秒后重试。"],
  try_now: ["Try now", "立即重试"],
  back: ["The connection is back.", "连接已恢复。"],
  silent: ["no event came for {n} s", "{n} 秒内没有收到事件"],
  ended: ["the server ended the stream", "服务器结束了数据流"],
  unreachable: ["the server does not answer", "服务器没有响应"],
  figures_none: ["Only allocation is known, not use.", "只知道分配情况，不知道使用情况。"],
  figures_nodes: ["Use as the agents wrote it on their nodes, some minutes old at most.", "使用情况来自节点上的记录，可能有数分钟的延迟。"],
  token_title: ["A token, please", "请输入令牌"],
  token_text: ["This page shows the cluster with your rights. Make a token and paste it here; it stays in this tab.", "此页面以您的权限显示集群。请创建令牌并粘贴到此处；令牌只保存在此标签页。"],
  token_label: ["Token", "令牌"],
  token_go: ["Show the cluster", "显示集群"],
  token_wrong: ["This token was not accepted.", "令牌未被接受。"],
  token_opened: ["This page was opened without its token. Open the address that the command printed.", "打开此页面时缺少令牌。请打开命令所打印的地址。"],
  forget: ["Sign out", "退出"],
  in_context: ["{context}", "{context}"],
  as_user: ["as {user}", "身份 {user}"],
  age_s: ["{n} s", "{n} 秒"],
  age_min: ["{n} min", "{n} 分钟"],
  age_h: ["{n} h", "{n} 小时"],
  age_d: ["{n} d", "{n} 天"],
  shares: ["{n} share|{n} shares", "{n} 份"],
  list_comma: [", ", "，"],
};

export const LANGUAGES = ["en", "zh"];
const LOCALES = { en: "en-GB", zh: "zh-CN" };
let language = "en";
let numbers = new Map();

/** Chooses the language: the one asked for, or the first that the browser prefers and the page has. */
export function speak(asked) {
  const preferred = [asked, ...navigator.languages].map((tag) => String(tag ?? "").toLowerCase().split("-")[0]);
  language = preferred.find((tag) => LANGUAGES.includes(tag)) ?? "en";
  numbers = new Map();
  document.documentElement.lang = language === "zh" ? "zh-Hans" : "en";
}

export function spoken() {
  return language;
}

/** Returns a text of the table, filled in. */
export function t(key, values = {}) {
  const forms = WORDS[key][LANGUAGES.indexOf(language)].split("|");
  const form = forms.length > 1 && values.n !== 1 ? forms[1] : forms[0];
  return form.replace(/\{(\w+)\}/g, (_, name) => (typeof values[name] === "number" ? number(values[name]) : values[name]));
}

export function number(value, digits = 0) {
  if (!numbers.has(digits)) {
    numbers.set(digits, new Intl.NumberFormat(LOCALES[language], { maximumFractionDigits: digits }));
  }
  return numbers.get(digits).format(value);
}

/** Writes the texts of a part of the page that is in index.html: `data-t` and `data-t-ATTRIBUTE`. */
export function translate(root) {
  for (const element of root.querySelectorAll("[data-t]")) element.textContent = t(element.dataset.t);
  for (const element of root.querySelectorAll("[data-t-label]")) element.setAttribute("aria-label", t(element.dataset.tLabel));
  for (const element of root.querySelectorAll("[data-t-hint]")) element.setAttribute("placeholder", t(element.dataset.tHint));
}

/** For tests: the keys. */
export const KEYS = Object.keys(WORDS);
