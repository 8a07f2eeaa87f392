// A button in each block of code that copies it: the commands alone, without prompts, if it has prompts.
// Pages of a plain http server have no clipboard.
(navigator.clipboard ? document.querySelectorAll("div.highlight") : []).forEach((block) => {
  const lines = block.querySelector("pre").textContent.trimEnd().split("\n");
  const commands = lines.filter((line) => line.startsWith("$ ")).map((line) => line.slice(2));
  const button = document.createElement("button");
  button.className = "copy";
  button.textContent = "copy";
  button.addEventListener("click", async () => {
    await navigator.clipboard.writeText((commands.length ? commands : lines).join("\n"));
    button.textContent = "copied";
    setTimeout(() => (button.textContent = "copy"), 1500);
  });
  block.append(button);
});
