/** Says the server's sentences in the language of the page; one that is not known here stays as the server wrote it. */

import { spoken } from "./words.js";

/**
 * Of every sentence: English, Chinese. `{name}` is copied, `{Name}` is a sentence itself, `{NAMES}` several of them with
 * semicolons between. An earlier one wins. One entry a line, as a test reads them.
 */
const SENTENCES = [
  // Why a pod waits.
  ["None of {n} nodes takes it: {REASONS}.", "{n} 个节点均不接受它：{REASONS}。"],
  ["The only node that shares GPUs, {node}, does not take it: {REASONS}.", "唯一共享 GPU 的节点 {node} 不接受它：{REASONS}。"],
  ["1 node has room for it now; {Why}", "现在有 1 个节点有余量；{Why}"],
  ["{n} nodes have room for it now; {Why}", "现在有 {n} 个节点有余量；{Why}"],
  ["It is not known yet why it waits.", "尚不知道它为何等待。"],
  ["{scheduler} has not looked at it yet; if this persists, no scheduler of this name runs.", "{scheduler} 尚未处理它；若持续如此，则没有运行此名称的调度器。"],
  ["{scheduler} says ({reason}): no message", "{scheduler} 说（{reason}）：没有消息"],
  ["{scheduler} says ({reason}): {message}", "{scheduler} 说（{reason}）：{message}"],
  ["{scheduler} says: {message}", "{scheduler} 说：{message}"],
  // Memory that changes while a pod runs.
  ["It waits for {amount} that {borrower} borrows of GPU {n}, asked to return it {Age}.", "它在等待 {borrower} 从 GPU {n} 借用的 {amount}，{Age}已要求归还。"],
  ["It needs {amount} that {borrower} borrows of GPU {n}, asked to return it {Age}.", "它需要 {borrower} 从 GPU {n} 借用的 {amount}，{Age}已要求归还。"],
  ["Container {container} is guaranteed {amount}; it is to have {target}: {Why}.", "容器 {container} 保证有 {amount}；目标为 {target}：{Why}。"],
  ["Container {container} is guaranteed {amount}, its request.", "容器 {container} 保证有其申请的 {amount}。"],
  ["Container {container} is guaranteed {amount}.", "容器 {container} 保证有 {amount}。"],
  ["Container {container} stays guaranteed its request, {amount}: the kubelet takes nothing back while it runs.", "容器 {container} 仍保证有其申请的 {amount}：容器运行期间 kubelet 不会收回。"],
  ["Its annotations for the size of its memory change nothing: {Why}.", "其有关显存大小的注解不起作用：{Why}。"],
  ["its annotations name no GPU", "其注解没有指明 GPU"],
  ["it has equal parts of several GPUs, which cannot be resized", "它有多块 GPU 的等份，不能调整"],
  ["it has whole GPUs, which cannot be resized", "它有整块 GPU，不能调整"],
  ["it has whole MIG instances, which cannot be resized", "它有整个 MIG 实例，不能调整"],
  ["It has shares of a MIG instance, which neither grow nor borrow.", "它有 MIG 实例的份额，既不能增长也不能借用。"],
  ["Its node did not let it borrow at the last report: the limit is newer, or the node's setting borrowers is off.", "据最近一次报告，其节点没有让它借用：上限更新，或节点的设置 borrowers 为 off。"],
  ["Its limit is {amount}, all of its GPU, of which it borrows what others do not need; {Why}.", "其上限为 {amount}，即其整块 GPU，其中借用他人不需要的部分；{Why}。"],
  ["Its limit is {amount}, all of its GPU, of which it borrows what others do not need.", "其上限为 {amount}，即其整块 GPU，其中借用他人不需要的部分。"],
  ["Its limit is {amount}, less than its guarantee; {Why}.", "其上限为 {amount}，低于其保证；{Why}。"],
  ["Its limit is {amount}, less than its guarantee.", "其上限为 {amount}，低于其保证。"],
  ["Its limit is {amount}, of which it borrows what others do not need; {Why}.", "其上限为 {amount}，其中借用他人不需要的部分；{Why}。"],
  ["Its limit is {amount}, of which it borrows what others do not need.", "其上限为 {amount}，其中借用他人不需要的部分。"],
  ["Its limit is {amount}; {Why}.", "其上限为 {amount}；{Why}。"],
  ["Its limit is {amount}.", "其上限为 {amount}。"],
  ["the scheduler extender has not answered yet", "调度器扩展尚未答复"],
  ["the agent of its node has not answered yet", "其节点的代理尚未答复"],
  ["the scheduler extender says: {why}", "调度器扩展说：{why}"],
  ["the agent of its node says: {why}", "其节点的代理说：{why}"],
  ["nothing enforces it: the program has to follow {file}", "没有任何机制强制执行：程序须遵守 {file}"],
  ["the driver keeps the limit of the container's start, unless the node runs the limit helper", "驱动保持容器启动时的限制，除非节点运行限制助手"],
  ["MPS keeps the limit with which the pod was made", "MPS 沿用创建 Pod 时的上限"],
  ["the library of the administrator keeps the limit with which the pod was made", "管理员的库沿用创建 Pod 时的上限"],
  ["{n} s ago", "{n} 秒前"],
  ["{n} min ago", "{n} 分钟前"],
  ["{n} h ago", "{n} 小时前"],
  ["{n} days ago", "{n} 天前"],
  ["at an unknown time", "不知何时"],
  // What would make room for it.
  ["The GPUs of {node} have room, but {REASONS}.", "{node} 的 GPU 有余量，但是{REASONS}。"],
  ["There would be room on {node} if this pod ended: {Pods}, but for the pod: {REASONS}.", "若此 Pod 结束，{node} 将有余量：{Pods}；但对该 Pod 而言：{REASONS}。"],
  ["There would be room on {node} if these {n} pods ended: {Pods}, but for the pod: {REASONS}.", "若这 {n} 个 Pod 结束，{node} 将有余量：{Pods}；但对该 Pod 而言：{REASONS}。"],
  ["There would be room on {node} if this pod ended: {Pods}.", "若此 Pod 结束，{node} 将有余量：{Pods}。"],
  ["There would be room on {node} if these {n} pods ended: {Pods}.", "若这 {n} 个 Pod 结束，{node} 将有余量：{Pods}。"],
  ["Even if all pods of the nodes ended, none would have room.", "即使节点上的所有 Pod 都结束，也没有节点会有余量。"],
  ["Pods would have to end; see the node's GPUs.", "需要有 Pod 结束；请查看节点的 GPU。"],
  ["{pod} ({amount}, priority {n}, being deleted), {Pods}", "{pod}（{amount}，优先级 {n}，正在删除），{Pods}"],
  ["{pod} ({amount}, priority {n}), {Pods}", "{pod}（{amount}，优先级 {n}），{Pods}"],
  ["{n} other pods", "另外 {n} 个 Pod"],
  ["1 other pod", "另外 1 个 Pod"],
  ["{n} pods that you may not see", "{n} 个您无权查看的 Pod"],
  ["1 pod that you may not see", "1 个您无权查看的 Pod"],
  ["{pod} ({amount}, priority {n}, being deleted)", "{pod}（{amount}，优先级 {n}，正在删除）"],
  ["{pod} ({amount}, priority {n})", "{pod}（{amount}，优先级 {n}）"],
  // Which moves of pods would make room for it.
  ["No moves were found that make room for {pod}.", "没有找到能为 {pod} 腾出空间的移动。"],
  ["No move is needed to make room for {pod}.", "无需移动即可容纳 {pod}。"],
  ["1 move makes room for {pod}.", "移动 1 次可为 {pod} 腾出空间。"],
  ["{n} moves make room for {pod}. There may be a plan with fewer.", "移动 {n} 次可为 {pod} 腾出空间。可能有移动次数更少的方案。"],
  ["no controller would replace it", "没有控制器会重建它"],
  ["a DaemonSet made it for its node", "它由 DaemonSet 为其节点创建"],
  ["its kubelet made it from a file", "它由其 kubelet 根据文件创建"],
  ["its annotation safe-to-evict is false", "其注解 safe-to-evict 为 false"],
  ["it has local storage (emptyDir or hostPath)", "它有本地存储（emptyDir 或 hostPath）"],
  ["its volumes may be tied to its node or zone", "其存储卷可能绑定在其节点或可用区"],
  ["it depends on the places of other pods (affinity or topology spread)", "它取决于其他 Pod 的位置（亲和性或拓扑分布）"],
  ["it asks for resources that are not counted here", "它申请了此处未计算的资源"],
  ["its PodDisruptionBudget allows no disruption", "其 PodDisruptionBudget 不允许中断"],
  ["several PodDisruptionBudgets select it, and such pods cannot be evicted", "多个 PodDisruptionBudget 选中它，此类 Pod 无法被驱逐"],
  ["kube-scheduler gave it its GPUs by a ResourceClaim (DRA)", "kube-scheduler 通过 ResourceClaim（DRA）为它分配了 GPU"],
  ["its GPU is not known", "其 GPU 未知"],
  ["1 more pod is not moved.", "另有 1 个 Pod 不移动。"],
  ["{n} more pods are not moved.", "另有 {n} 个 Pod 不移动。"],
  ["{Right}: the API server may refuse evictions that the plan counts on.", "{Right}：API 服务器可能拒绝方案所依赖的驱逐。"],
  ["A plan concerns all nodes and their pods: {Right}.", "方案涉及所有节点及其 Pod：{Right}。"],
  ["The pod {pod} does not wait for GPUs by its limits.", "Pod {pod} 没有按其限制等待 GPU。"],
  // What keeps it from a node.
  ["{Reason} ({n})", "{Reason}（{n}）"],
  ["other reasons", "其他原因"],
  ["{Reason}, among the GPUs that the pod's annotations allow", "{Reason}（在该 Pod 的注解允许的 GPU 中）"],
  ["it is cordoned", "它已被封锁"],
  ["it is not ready", "它未就绪"],
  ["the pod does not tolerate its taint {taint}", "该 Pod 不容忍其污点 {taint}"],
  ["the pod requires the node label {label}", "该 Pod 要求节点标签 {label}"],
  ["the pod's node affinity requires {what}", "该 Pod 的节点亲和性要求 {what}"],
  ["it matches none of the {n} terms of the pod's node affinity", "它不符合该 Pod 节点亲和性的 {n} 个条件中的任何一个"],
  ["its kubelet knows no {resource}: no agent has registered there since it started", "其 kubelet 不知道 {resource}：自它启动以来没有代理在那里注册"],
  ["its agent offers no {resource} at the moment; see the agent's log", "其代理目前不提供 {resource}；请查看代理的日志"],
  ["its GPUs have room", "其 GPU 有余量"],
  ["its GPUs have room, but {REASONS}", "其 GPU 有余量，但是{REASONS}"],
  ["it shares no GPU", "它不共享 GPU"],
  ["the pod's annotations allow none of its GPUs", "该 Pod 的注解不允许其任何 GPU"],
  ["no {hardware} has {amount} free", "没有 {hardware} 有 {amount} 空闲"],
  ["fewer than {n} {hardware}s have {amount} free", "有 {amount} 空闲的 {hardware} 少于 {n} 个"],
  ["no GPU is unused", "没有未使用的 GPU"],
  ["fewer than {n} GPUs are unused", "未使用的 GPU 少于 {n} 块"],
  ["fewer than {n} GPUs are healthy", "正常的 GPU 少于 {n} 块"],
  ["no {hardware} is healthy", "没有正常的 {hardware}"],
  ["GPU {n} is cordoned by {by} at {at} because: {why}", "GPU {n} 已被 {by} 于 {at} 封锁：{why}"],
  ["GPU {n} is cordoned by {by} at {at}", "GPU {n} 已被 {by} 于 {at} 封锁"],
  ["all {hardware}s are exclusively allocated", "每个 {hardware} 都已整体使用"],
  ["the largest {hardware} in service has {amount} in all, and one of {more} is out of service", "可用的最大 {hardware} 共有 {amount}，另一个 {more} 的已停用"],
  ["the largest {hardware} has {amount} in all", "最大的 {hardware} 共有 {amount}"],
  ["fewer than {n} GPUs have {amount} in all", "总量达到 {amount} 的 GPU 少于 {n} 块"],
  ["fewer than {n} GPUs in service have {amount} in all", "可用且总量达到 {amount} 的 GPU 少于 {n} 块"],
  // What is not shown.
  ["{Right}, so nodes and their GPUs are not shown; ask an administrator of the cluster for it.", "{Right}，因此不显示节点及其 GPU；请向集群管理员申请。"],
  ["{Right}, so no pods are shown.", "{Right}，因此不显示 Pod。"],
  ["{Right}, so only the pods of the namespace {namespace} are shown, and GPU usage may be under-reported.", "{Right}，因此只显示命名空间 {namespace} 的 Pod，GPU 的实际占用可能更高。"],
  ["the right to {verb} {resource} in the whole cluster is missing", "缺少在整个集群中 {verb} {resource} 的权限"],
  ["the right to {verb} {resource} in the namespace {namespace} is missing", "缺少在命名空间 {namespace} 中 {verb} {resource} 的权限"],
  ["Some {kind} could not be understood, and are left out.", "有些 {kind} 无法解析，未予显示。"],
  ["{n} more nodes have annotations that cannot be read.", "另有 {n} 个节点的注解无法读取。"],
  ["1 more pod waits; the oldest {most} are shown.", "另有 1 个 Pod 在等待；只显示最早的 {most} 个。"],
  ["{n} more pods wait; the oldest {most} are shown.", "另有 {n} 个 Pod 在等待；只显示最早的 {most} 个。"],
  ["Names of pods follow: the API server has not yet said for all namespaces whether you may see their pods", "Pod 名称稍后显示：API 服务器尚未告知您可以查看哪些命名空间的 Pod"],
  ["You have no right to list nodes, so only pods of your namespaces are shown, without their GPUs; ask an administrator to bind the ClusterRole gpushare-viewer to you", "您没有列出节点的权限，因此只显示您的命名空间中的 Pod，不显示其 GPU；请管理员为您绑定 ClusterRole gpushare-viewer"],
  // Where figures of use come from.
  ["no node agent can be read{rest}", "无法读取任何节点代理{rest}"],
  ["{n} of {all} node agents cannot be read", "{all} 个节点代理中有 {n} 个无法读取"],
  ["{n} nodes are too many to read all; {most} are read, those in view first", "{n} 个节点太多，无法全部读取；读取其中 {most} 个，优先读取可见的"],
  ["nodes cannot be read", "无法读取节点"],
  // What agents remember.
  ["The agent of node {node} cannot be asked: {Why}.", "无法询问节点 {node} 的代理：{Why}。"],
  ["no agent that serves HTTP runs there", "那里没有运行提供 HTTP 的代理"],
  ["no node agent that serves HTTP runs", "没有运行提供 HTTP 的节点代理"],
  ["The agent of node {node} has nothing of it: it is older than this page, records nothing, or has forgotten it.", "节点 {node} 的代理没有相关记录：它比此页面旧、不做记录，或已遗忘。"],
  ["The agent of node {node} does not answer: {why}.", "节点 {node} 的代理没有响应：{why}。"],
  ["What the agent of node {node} remembers cannot be understood; upgrade the older of agent and page.", "无法解析节点 {node} 的代理的记录；请升级代理与页面中较旧的一方。"],
  ["A record concerns all pods of a GPU: {Right}.", "记录涉及 GPU 的所有 Pod：{Right}。"],
  ["{gpu} reported XID {n}: {what}", "{gpu} 报告 XID {n}：{what}"],
  ["pod {pod} is evicted: {why}", "Pod {pod} 被驱逐：{why}"],
  ["container {container} ended with exit code {n} ({reason})", "容器 {container} 以退出码 {n} 结束（{reason}）"],
  ["container {container} was killed for lack of main memory, at its memory limit or its node's", "容器 {container} 因内存不足被终止：达到其内存上限，或节点内存不足"],
  ["a process of container {container} was killed for lack of main memory", "容器 {container} 的一个进程因内存不足被终止"],
  // Refusals.
  ["There is no pod {pod} in the namespace {namespace}; it may be gone.", "命名空间 {namespace} 中没有 Pod {pod}；它可能已被删除。"],
  ["There is no such node that shares GPUs.", "没有这样一个共享 GPU 的节点。"],
  ["You have no right to get pods in the namespace {namespace}.", "您没有读取命名空间 {namespace} 中 Pod 的权限。"],
  ["Nodes are not shown: {Right}.", "不显示节点：{Right}。"],
  ["This is not shown: {Right}; ask an administrator of the cluster for it.", "不予显示：{Right}；请向集群管理员申请。"],
  ["The API server does not answer: {why}.", "API 服务器没有响应：{why}。"],
  ["The API server did not answer within {n} s; try again.", "API 服务器在 {n} 秒内没有响应；请重试。"],
  ["The API server's answer cannot be understood: {why}.", "无法解析 API 服务器的响应：{why}。"],
  ["the cluster is being read", "正在读取集群"],
  // Health.
  ["Xid {n}: {what}", "Xid {n}：{what}"],
];

let patterns = null;

/** Returns a sentence of the server in the language of the page; "" for none. */
export function serverSaying(text) {
  return spoken() === "zh" && text ? translated(String(text)) : String(text ?? "");
}

/** Returns a sentence in Chinese. `depth`: how many sentences it stands in. */
function translated(text, depth = 0) {
  if (depth > 12 || text.length > 2_000) return text;
  patterns ??= SENTENCES.map(([english, chinese]) => [pattern(english), chinese]);
  for (const [expected, chinese] of patterns) {
    const found = expected.exec(text);
    if (!found) continue;
    return chinese.replace(/\{(\w+)\}/g, (_, name) => {
      const part = found.groups[name];
      if (/^[A-Z]+$/.test(name)) return part.split("; ").map((each) => translated(each, depth + 1)).join("；");
      return /^[A-Z]/.test(name) ? translated(part, depth + 1) : part;
    });
  }
  return text;
}

function pattern(english) {
  const literal = english.replace(/[.*+?^$()|[\]\\]/g, "\\$&");
  // The first letter is a capital where it begins a line of the page.
  const first = /^[a-z]/i.test(literal) ? `[${literal[0].toLowerCase()}${literal[0].toUpperCase()}]${literal.slice(1)}` : literal;
  const kinds = { n: "\\d+", all: "\\d+", most: "\\d+", node: "\\S+", pod: "\\S+", namespace: "\\S+", verb: "\\S+", resource: "\\S+", scheduler: "\\S+", reason: "[^()]+", amount: "[^()]+?", target: "[^:]+", hardware: "GPU or MIG instance|MIG instance|GPU" };
  return new RegExp(`^${first.replace(/\{(\w+)\}/g, (_, name) => `(?<${name}>${kinds[name] ?? ".+"})`)}$`, "s");
}
